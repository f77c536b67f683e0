"""The log of a run: in memory at once, in the table soon, and there exactly once."""

import asyncio
from uuid import UUID, uuid4

import orjson
import pytest
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat import run_repository
from backend.chat.events import EventHub, RunLog
from backend.chat.records import EventBatch, RunRef, TurnClaim
from backend.chat.storage import ConversationStorage
from backend.chat.wakeups import Wakeups
from backend.errors import StorageUnavailable
from backend.infra.database.engine import create_engine, transaction
from backend.schemas.auth import Principal
from backend.schemas.chat import ContentEvent, encode_event
from tests.chat.workers import new_user, no_redis
from tests.support.databases import postgres_proxy
from tests.support.waiting import until


async def test_a_run_is_taken_over_after_the_batch_that_its_owner_is_writing(engine: AsyncEngine):
    ref = await claimed(engine, await new_user(engine))
    async with transaction(engine) as connection:
        await connection.execute(text("update runs set lease_expires_at = now() - interval '1 second'"))

    async def take_over() -> list[EventBatch]:
        async with transaction(engine) as connection:
            assert await run_repository.take_over(connection, ref.run_id, "reaper", 10)
            return await run_repository.read_events(connection, ref.run_id, 0)

    async with transaction(engine) as writing:
        await run_repository.insert_events(writing, [EventBatch(ref.run_id, 1, [b"{}"])], "w")
        taking = asyncio.create_task(take_over())
        assert not (await asyncio.wait([taking], timeout=1))[0]
    assert [batch.events for batch in await taking] == [[b"{}"]]
    async with transaction(engine) as late:
        await run_repository.insert_events(late, [EventBatch(ref.run_id, 2, [b"{}"])], "w")
        assert len(await run_repository.read_events(late, ref.run_id, 0)) == 1


async def claimed(engine: AsyncEngine, user: Principal, session_id: str = "s", worker_id: str = "w") -> RunRef:
    """A running run of ``worker_id``."""
    storage = ConversationStorage(engine, no_redis())
    claim = TurnClaim(user.id, session_id, "hi", "hash", None, "en", "hi", worker_id, 10, 4)
    return (await storage.append_turn(claim)).ref


async def stored(engine: AsyncEngine, run_id: UUID) -> list[str]:
    """The contents in the table, in order; their ``seq`` must be 1, 2, 3 …"""
    async with transaction(engine) as connection:
        batches = await run_repository.read_events(connection, run_id, 0)
    events = [orjson.loads(data) for batch in batches for data in batch.events]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    return [event["content"] for event in events]


def write(log: RunLog, *contents: str) -> None:
    for content in contents:
        log.append(ContentEvent(content=content))


async def test_events_are_numbered_from_one_and_one_line_each():
    log = RunLog(uuid4(), uuid4())
    write(log, "a\nb", "\u2028", 'data: {"type": "done"}\n\n')
    assert [orjson.loads(event)["seq"] for event in log.events] == [1, 2, 3]
    assert all(len(event.decode().splitlines()) == 1 for event in log.events)
    assert log.text == 'a\nb\u2028data: {"type": "done"}\n\n'


def test_a_line_separator_of_unicode_is_escaped():
    data = encode_event(ContentEvent(content="a\u0085b\u2028c\u2029d"))
    assert len(data.decode().splitlines()) == 1
    assert orjson.loads(data)["content"] == "a\u0085b\u2028c\u2029d"


async def test_what_is_new_is_flushed_for_all_runs_and_only_once(engine: AsyncEngine):
    user = await new_user(engine)
    hub = EventHub(engine, Wakeups(no_redis()), worker_id="w")
    one, two = [hub.open(await claimed(engine, user, name)) for name in ("one", "two")]
    write(one, "a", "b")
    write(two, "x")
    await hub.flush()
    write(one, "c")
    await hub.flush()
    await hub.flush()
    assert await stored(engine, one.run_id) == ["a", "b", "c"]
    assert await stored(engine, two.run_id) == ["x"]


async def test_a_worker_that_lost_the_run_adds_nothing(engine: AsyncEngine):
    user = await new_user(engine)
    ref = await claimed(engine, user, worker_id="another")
    hub = EventHub(engine, Wakeups(no_redis()), worker_id="w")
    write(hub.open(ref), "stolen")
    await hub.flush()
    assert await stored(engine, ref.run_id) == []


async def test_a_sealed_log_is_left_to_the_last_transaction(engine: AsyncEngine):
    user = await new_user(engine)
    hub = EventHub(engine, Wakeups(no_redis()), worker_id="w")
    log = hub.open(await claimed(engine, user))
    write(log, "a")
    await hub.flush()
    write(log, "b")
    pending = await hub.seal(log)
    await hub.flush()
    assert await stored(engine, log.run_id) == ["a"]
    assert pending is not None
    assert (pending.first_seq, pending.last_seq) == (2, 2)


async def test_a_commit_whose_answer_is_lost_is_written_again(database_url: URL, engine: AsyncEngine):
    user = await new_user(engine)
    async with postgres_proxy(database_url) as (proxy, url):
        broken = create_engine(url, pool_size=2)
        hub = EventHub(broken, Wakeups(no_redis()), worker_id="w")
        log = hub.open(await claimed(engine, user))
        write(log, "a")
        proxy.on_bytes(b"COMMIT", "cut_reply")
        with pytest.raises(StorageUnavailable):
            await hub.flush()
        assert await stored(engine, log.run_id) == ["a"]  # although the worker does not know
        write(log, "b")
        await hub.flush()
        await broken.dispose()
    assert await stored(engine, log.run_id) == ["a", "b"]


async def test_a_flush_that_is_refused_once_does_not_end_the_flushing(engine: AsyncEngine):
    user = await new_user(engine)
    hub = EventHub(engine, Wakeups(no_redis()), worker_id="w")
    log = hub.open(await claimed(engine, user))
    async with transaction(engine) as connection:
        await connection.execute(text("alter table run_events rename to run_events_away"))
    write(log, "a")
    flushing = asyncio.create_task(hub.flush_forever())
    try:
        await until(hub.failing_for)
    finally:
        async with transaction(engine) as connection:
            await connection.execute(text("alter table run_events_away rename to run_events"))
    await until(lambda: not hub.failing_for())
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    assert await stored(engine, log.run_id) == ["a"]


async def test_waiting_ends_with_the_next_event():
    log = RunLog(uuid4(), uuid4())
    waiting = asyncio.create_task(log.wait(60))
    await asyncio.sleep(0)
    write(log, "a")
    async with asyncio.timeout(30):
        await waiting
