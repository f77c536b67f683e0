"""Reading a run by cursor: from memory, from the table, from the rows; the same events and never a shorter text."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat import run_repository
from backend.chat.service import ChatService, StartedTurn
from backend.chat.subscription import StreamCut
from backend.errors import NotFound
from backend.infra.database.engine import transaction
from backend.schemas.auth import Principal
from tests.chat.workers import Events, ask, new_user, read, until_text, whole_turn, worker
from tests.support.fake_llm import FakeLLM, hang_after
from tests.support.fake_llm import text as says

ANSWER = "It lasts 24 months, as the sheet says. " * 5
TAIL = ["trace", "citations", "done"]


@asynccontextmanager
async def ended_turn(engine: AsyncEngine, **config: Any) -> AsyncIterator[tuple[ChatService, Principal, StartedTurn]]:
    """A worker with a completed turn whose answer is ``ANSWER``."""
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, **config) as service:
        llm.script(says(ANSWER))
        yield service, user, await whole_turn(service, user)


def tail_starts(seen: Events) -> int:
    return seen.seqs[seen.types.index("trace")]


@pytest.mark.parametrize("memory", [True, False])
async def test_replay_is_whole_and_in_order(engine: AsyncEngine, memory: bool):
    async with ended_turn(engine, event_memory_log=memory) as (service, user, turn):
        seen = await read(service, user, turn.run_id)
    assert seen.seqs == list(range(1, len(seen.seqs) + 1))
    assert [event["seq"] for event in seen.events] == seen.seqs
    assert seen.types[:3] == ["run_started", "rag_step", "session_title"]
    assert seen.types[-3:] == TAIL
    assert seen.text == ANSWER
    assert service.subscriptions.count == 0


async def test_memory_and_table_hold_the_same(engine: AsyncEngine):
    async with ended_turn(engine) as (service, user, turn):
        from_memory = await read(service, user, turn.run_id)
        service._hub.memory_log = False
        assert await read(service, user, turn.run_id) == from_memory


@pytest.mark.parametrize("memory", [True, False])
async def test_a_cursor_in_the_middle_gets_the_rest_and_no_more(engine: AsyncEngine, memory: bool):
    async with ended_turn(engine, event_memory_log=memory) as (service, user, turn):
        whole = await read(service, user, turn.run_id)
        for after in (1, 7, len(whole.seqs) - 1):
            assert (await read(service, user, turn.run_id, after)).events == whole.events[after:]


@pytest.mark.parametrize("memory", [True, False])
async def test_a_cursor_at_the_end_gets_nothing(engine: AsyncEngine, memory: bool):
    async with ended_turn(engine, event_memory_log=memory) as (service, user, turn):
        last = (await read(service, user, turn.run_id)).seqs[-1]
        assert (await read(service, user, turn.run_id, last)).events == []
        assert (await service.run_info(user, turn.run_id)).last_seq == last


@pytest.mark.parametrize("memory", [True, False])
async def test_a_cursor_beyond_the_end_gets_one_gap_and_the_tail(engine: AsyncEngine, memory: bool):
    async with ended_turn(engine, event_memory_log=memory) as (service, user, turn):
        whole = await read(service, user, turn.run_id)
        seen = await read(service, user, turn.run_id, whole.seqs[-1] + 50)
    assert seen.types == ["gap", *TAIL]
    assert seen.text == ANSWER
    assert seen.events[1:] == whole.events[-3:]
    assert seen.of("gap")[0]["to"] == seen.seqs[0] == tail_starts(whole) - 1


@pytest.mark.parametrize("after", [0, 3, 2**62])
async def test_after_retention_a_gap_stands_for_the_events(engine: AsyncEngine, after: int):
    async with ended_turn(engine, event_memory_log=False) as (service, user, turn):
        whole = await read(service, user, turn.run_id)
        await drop_events(engine)
        seen = await read(service, user, turn.run_id, after)
        assert seen.types == ["gap", *TAIL]
        assert seen.text == ANSWER
        assert seen.events[1:] == whole.events[-3:]
        assert (await read(service, user, turn.run_id, whole.seqs[-1])).events == []
        assert (await read(service, user, turn.run_id, whole.seqs[-2])).types == ["done"]


async def drop_events(engine: AsyncEngine) -> None:
    """What the sweeper does when retention is over."""
    async with transaction(engine) as connection:
        await connection.execute(text("update runs set finished_at = now() - interval '2 days'"))
        await run_repository.drop_old_events(connection, 24)
        assert (await connection.execute(text("select count(*) from run_events"))).scalar_one() == 0


async def test_events_younger_than_retention_stay(engine: AsyncEngine):
    async with ended_turn(engine, event_memory_log=False) as (service, user, turn):
        await service._runs.sweep()
        assert "gap" not in (await read(service, user, turn.run_id)).types


async def test_a_live_run_is_read_to_its_end_on_another_worker(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as owner, worker(engine, llm) as other:
        llm.script(says("one two three four five", delay=0.3))
        turn = await owner.start_turn(user, ask(), "en")
        seen = await read(other, user, turn.run_id)
        assert seen == await read(owner, user, turn.run_id)
        assert seen.text == "one two three four five"


@pytest.mark.parametrize("memory", [True, False])
async def test_a_cursor_beyond_a_live_run_gets_a_gap_with_the_text(engine: AsyncEngine, memory: bool):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, event_memory_log=memory) as service:
        llm.script(says("one two three four five", delay=0.3))
        turn = await service.start_turn(user, ask(), "en")
        await until_text(service, user, turn.run_id, "two")
        seen = await read(service, user, turn.run_id, 10_000)
        assert seen.types[0] == "gap"
        assert seen.types.count("gap") == 1
        assert seen.text == "one two three four five"
        assert seen.types[-3:] == TAIL


async def test_a_hole_after_a_killed_worker_gets_one_gap_and_the_tail(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, drain=False, lease_seconds=600) as dead:
        llm.script(hang_after(5))
        turn = await dead.start_turn(user, ask(), "en")
        reached = await until_text(dead, user, turn.run_id, "five")
        await dead._hub.flush()
        await expire(engine)
        async with worker(engine, llm) as alive:
            await alive._runs.reap()
            at_end = await read(alive, user, turn.run_id, reached)
            in_hole = await read(alive, user, turn.run_id, reached + 40)
            whole = await read(alive, user, turn.run_id)
        await dead._runs.renew()
    assert whole.text == "one two three four five "
    assert whole.seqs[reached] == reached + 1000
    assert at_end.types == ["trace", "citations", "error", "done"]
    assert in_hole.types == ["gap", *at_end.types]
    assert in_hole.text == whole.text
    assert in_hole.events[1:] == at_end.events
    assert whole.of("error")[0]["code"] == "server_shutdown"


async def expire(engine: AsyncEngine) -> None:
    async with transaction(engine) as connection:
        await connection.execute(text("update runs set lease_expires_at = now() - interval '1 second'"))


async def test_a11_a_slow_reader_is_cut_without_done_and_comes_back_with_its_cursor(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, subscriber_max_events=5) as service:
        llm.script(says(ANSWER, delay=0.05))
        turn = await service.start_turn(user, ask(), "en")
        stream = service.follow(user, turn.run_id, 0)
        while b"content" not in (await anext(stream))[-1].data:
            pass
        got = await anext(stream)
        await service.answer(user, turn)
        with pytest.raises(StreamCut):
            await anext(stream)
        assert service.subscriptions.count == 0
        whole = await read(service, user, turn.run_id)
        rest = await read(service, user, turn.run_id, got[-1].seq)
        assert rest.events == whole.events[got[-1].seq :]
        assert whole.text == ANSWER


async def test_j02_a_foreign_run_and_no_run_look_the_same(engine: AsyncEngine):
    async with ended_turn(engine) as (service, _, turn):
        stranger = await new_user(engine, "mallory")
        for run_id in (turn.run_id, uuid4()):
            with pytest.raises(NotFound):
                await read(service, stranger, run_id)
        assert service.subscriptions.count == 0
