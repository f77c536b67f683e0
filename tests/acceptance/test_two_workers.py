"""Two server processes on one database: any of them shows a run and stops it, with Redis or without."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from sqlalchemy import URL
from sqlalchemy import text as sql
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from backend.chat.wakeups import channel_of
from tests.acceptance.rack import Rack, rack
from tests.acceptance.test_restart import flushed
from tests.support.chat_client import Client, signed_in
from tests.support.fake_llm import Action, hang_after, raw, text
from tests.support.fake_llm_replies import delta, event
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
HALF = "one two three four five "


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    env = {"LEASE_SECONDS": "5"}
    async with rack(postgres_url, valkey_url, f"two_{worker_id}", env, peer=True) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await shared.reset()
    await listening(shared)
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def there(at: Rack, alice: Client) -> AsyncIterator[Client]:
    """The same account at the other worker."""
    assert at.peer is not None
    token = alice.http.headers["authorization"].removeprefix("Bearer ")
    async with signed_in(at.peer.url, alice.name, token) as client:
        yield client


async def listening(at: Rack) -> None:
    """Wait until both workers listen for hints."""

    async def both() -> bool:
        async with Redis.from_url(at.valkey_url) as redis:
            return next(iter(await redis.pubsub_numsub(channel_of(redis))))[1] >= 2

    await until(both)


@pytest.mark.parametrize("fault", ["none", "refuse", "blackhole"])
async def test_a16_a_run_is_seen_and_stopped_on_the_other_worker(at: Rack, alice: Client, there: Client, fault: str):
    at.llm.script(hang_after(5), text("Again."))
    async with alice.stream() as here:
        await here.until_text("one")
        async with there.follow(here.run_id) as elsewhere:
            await elsewhere.until_text("one")
            if fault != "none":
                getattr(at.redis, fault)()
            await elsewhere.until_text("five")
            stopped = await asyncio.gather(there.stop(here.run_id), there.stop(here.run_id))
            assert {answer["status"] for answer in stopped} <= {"running", "stopped"}
            await asyncio.wait_for(at.llm.chats[0].ended.wait(), 30)
            assert at.llm.chats[0].closed_by_client
            await here.end()
            await elsewhere.end()
    assert (await there.stop(here.run_id))["status"] == "stopped"
    for seen in (here, elsewhere):
        assert (seen.text, seen.one("done")["status"]) == (HALF, "stopped")
    assert here.events == elsewhere.events
    await at.redis.restore()
    assert (await there.ask("And now?")).text == "Again."
    await at.check(here, turns=2)


def word(content: str) -> bytes:
    return event(delta({"content": content}))


FROZEN_SECONDS = 2.0
REST = [word(f"late{number} ") for number in range(100)]
LATE = {
    "goes_on": raw(word("one "), word("two "), FROZEN_SECONDS, *REST, Action.HANG),
    "has_ended": raw(
        word("one "), word("two "), FROZEN_SECONDS, *REST, event(delta({}, finish="stop")), b"data: [DONE]\n\n"
    ),
}


async def rows(url: URL) -> dict[str, list[Any]]:
    """Everything that a turn writes."""
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.connect() as connection:
        found = {
            table: list((await connection.execute(sql(f"select t::text from {table} t order by 1"))).scalars())
            for table in ("chat_sessions", "chat_messages", "runs", "run_events")
        }
    await engine.dispose()
    return found


@pytest.mark.parametrize("answer", LATE)
async def test_a_worker_that_was_frozen_for_longer_than_its_lease_writes_and_shows_nothing_more(
    at: Rack, alice: Client, there: Client, answer: str
):
    at.llm.script(LATE[answer], text("Again."))
    async with alice.stream() as here:
        await here.until_text("two")
        await flushed(at.database, "two")
        os.kill(at.server.pid, signal.SIGSTOP)
        try:
            assert (await there.ended(here.run_id))["status"] == "interrupted"
            stored, before, seen = await there.messages(), await rows(at.database), await there.replay(here.run_id)
        finally:
            os.kill(at.server.pid, signal.SIGCONT)
        await here.end()
    assert (here.text, here.done, here.types[-1]) == ("one two ", False, "error")
    await asyncio.wait_for(at.llm.chats[0].ended.wait(), 30)
    assert (stored[-1]["content"], stored[-1]["status"]) == ("one two ", "interrupted")
    assert await alice.messages() == await there.messages() == stored
    assert (await alice.replay(here.run_id)).events == seen.events
    assert await rows(at.database) == before
    assert (await alice.ask("And now?")).text == "Again."
    await at.check(seen, turns=2)
