"""Runs: leases, stopping, and ending what another worker left behind."""

import asyncio
from contextlib import AsyncExitStack
from typing import cast
from uuid import UUID

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool

from backend.chat import run_repository
from backend.chat.records import TurnEnd
from backend.chat.service import ChatService
from backend.errors import Draining, RunActive, TooManyRuns
from backend.infra.database.engine import create_engine, transaction
from tests.chat.workers import ask, new_user, read, until_text, whole_turn, worker
from tests.support.fake_llm import FakeLLM, hang_after
from tests.support.fake_llm import text as says
from tests.support.waiting import until


async def expire(engine: AsyncEngine) -> None:
    async with transaction(engine) as connection:
        await connection.execute(text("update runs set lease_expires_at = now() - interval '1 second'"))


async def lease_left(engine: AsyncEngine, run_id: UUID) -> float:
    query = text("select extract(epoch from lease_expires_at - now()) from runs where id = :id")
    async with transaction(engine) as connection:
        return float((await connection.execute(query, {"id": run_id})).scalar_one())


async def until_free(service: ChatService) -> None:
    await until(lambda: service.active_runs == 0)


async def test_a_live_run_keeps_its_lease(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, lease_seconds=5) as service:
        llm.script(hang_after(1))
        turn = await service.start_turn(user, ask(), "en")
        await expire(engine)
        await service._runs.renew()
        assert 0 < await lease_left(engine, turn.run_id) <= 5
        await service._runs.reap()
        assert (await service.run_info(user, turn.run_id)).status == "running"


async def test_a_run_that_was_frozen_with_its_worker_goes_on_if_nobody_has_ended_it(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, lease_seconds=600) as service:
        llm.script(says("one two three four", delay=0.3))
        turn = await service.start_turn(user, ask(), "en")
        await until_text(service, user, turn.run_id, "one")
        await expire(engine)
        service._runs._renewed_at -= 600
        await service._runs.reap()
        await asyncio.sleep(0.5)
        assert (await service.run_info(user, turn.run_id)).status == "running"
        await service._runs.renew()
        seen = await read(service, user, turn.run_id)
    assert (seen.text, seen.one("done")["status"]) == ("one two three four", "completed")


async def test_leases_are_renewed_by_themselves(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, lease_seconds=5) as service:
        llm.script(hang_after(1))
        turn = await service.start_turn(user, ask(), "en")
        async with transaction(engine) as connection:
            await connection.execute(text("update runs set lease_expires_at = now() + interval '2 seconds'"))

        async def renewed() -> bool:
            return await lease_left(engine, turn.run_id) > 2

        await until(renewed)


async def test_d04_a_crowd_at_the_database_takes_no_lease_and_no_event(engine: AsyncEngine):
    user = await new_user(engine)
    upkeep = create_engine(engine.url, pool_size=1)
    async with (
        FakeLLM() as llm,
        worker(engine, llm, upkeep=upkeep, lease_seconds=600) as service,
        AsyncExitStack() as crowd,
    ):
        llm.script(hang_after(5))
        turn = await service.start_turn(user, ask(), "en")
        await until_text(service, user, turn.run_id, "five")
        for _ in range(cast(QueuePool, engine.pool).size()):
            await crowd.enter_async_context(engine.connect())
        await expire(upkeep)
        await service._runs.renew()
        await service._hub.flush()
        assert await lease_left(upkeep, turn.run_id) > 0
        async with transaction(upkeep) as connection:
            assert await run_repository.read_events(connection, turn.run_id, 0)
    await upkeep.dispose()


async def test_a_worker_that_lost_its_lease_writes_nothing_more(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, lease_seconds=600) as slow:
        llm.script(hang_after(5))
        turn = await slow.start_turn(user, ask(), "en")
        await until_text(slow, user, turn.run_id, "five")
        await slow._hub.flush()
        async with worker(engine, llm) as other:
            await expire(engine)
            await other._runs.reap()
            before = await other.answer(user, turn)
            events = await read(other, user, turn.run_id)
            await slow._runs.renew()
            await until_free(slow)
            await asyncio.wait_for(llm.chats[0].ended.wait(), 10)
            assert llm.chats[0].closed_by_client
            assert await other.answer(user, turn) == before
            assert await read(other, user, turn.run_id) == events
            assert await read(slow, user, turn.run_id) == events
    assert before.status == "interrupted"
    assert before.response == "one two three four five "
    assert before.error is not None
    assert before.error.code == "server_shutdown"


async def test_an_end_that_comes_after_the_lease_was_lost_is_not_written(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, lease_seconds=600) as slow:
        llm.script(says("one two three four", delay=0.4))
        turn = await slow.start_turn(user, ask(), "en")
        await until_text(slow, user, turn.run_id, "two")
        async with worker(engine, llm) as other:
            await expire(engine)
            await other._runs.reap()
            await until_free(slow)
            assert (await other.answer(user, turn)).status == "interrupted"
            seen = await read(slow, user, turn.run_id)
    assert seen.types[-2:] == ["error", "done"]
    assert seen.types.count("done") == 1


async def test_b03_an_expired_run_is_reaped_at_start_and_the_session_is_free(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, drain=False, lease_seconds=600) as dead:
        llm.script(hang_after(5))
        turn = await dead.start_turn(user, ask(), "en")
        await until_text(dead, user, turn.run_id, "five")
        async with worker(engine, llm) as alive:
            assert (await alive.run_info(user, turn.run_id)).status == "running"
            await until_text(alive, user, turn.run_id, "five")  # it reads what is in the table
        await expire(engine)
        async with worker(engine, llm) as alive:
            found = await alive.answer(user, turn)
            assert (found.status, found.response) == ("interrupted", "one two three four five ")
            messages = (await alive.messages(user, "s")).messages
            assert [(item.type, item.status) for item in messages] == [("human", "completed"), ("ai", "interrupted")]
            again = await whole_turn(alive, user, ask("again?"))
            assert (await alive.run_info(user, again.run_id)).status == "completed"
        await dead._runs.renew()
        await until_free(dead)


async def test_a_new_turn_does_not_wait_for_the_reaper(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, drain=False, lease_seconds=600) as dead:
        llm.script(hang_after(2))
        turn = await dead.start_turn(user, ask(), "en")
        await until_text(dead, user, turn.run_id, "two")
        async with worker(engine, llm, lease_seconds=600) as alive:
            with pytest.raises(RunActive) as refused:
                await alive.start_turn(user, ask("again?"), "en")
            assert refused.value.fields == {"run_id": str(turn.run_id)}
            await expire(engine)
            await whole_turn(alive, user, ask("again?"))
            assert (await alive.run_info(user, turn.run_id)).status == "interrupted"
        await dead._runs.renew()
        await until_free(dead)


async def test_two_reapers_end_a_run_once(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, drain=False, lease_seconds=600) as dead:
        llm.script(hang_after(1))
        turn = await dead.start_turn(user, ask(), "en")
        await until_text(dead, user, turn.run_id, "one")
        async with worker(engine, llm) as one, worker(engine, llm) as two:
            await expire(engine)
            await asyncio.gather(*(service._runs.reap() for service in (one, two, one, two)))
            assert (await read(two, user, turn.run_id)).types.count("done") == 1
        await dead._runs.renew()
        await until_free(dead)


async def test_a16_stop_works_from_another_worker(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, lease_seconds=600) as owner, worker(engine, llm) as other:
        llm.script(hang_after(3))
        turn = await owner.start_turn(user, ask(), "en")
        await until_text(owner, user, turn.run_id, "three")
        await other.stop(user, turn.run_id)
        await asyncio.wait_for(llm.chats[0].ended.wait(), 10)
        assert llm.chats[0].closed_by_client
        found = await other.answer(user, turn)
        assert (found.status, found.response, found.error) == ("stopped", "one two three ", None)
        assert (await other.stop(user, turn.run_id)).status == "stopped"
        assert (await owner.stop(user, turn.run_id)).status == "stopped"


async def test_interrupting_multitask_stops_the_active_run_first(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as owner, worker(engine, llm) as other:
        llm.script(hang_after(2), says("second"))
        first = await owner.start_turn(user, ask(), "en")
        await until_text(owner, user, first.run_id, "two")
        second = await whole_turn(other, user, ask("rather this", multitask="interrupt"))
        assert (await other.answer(user, first)).status == "stopped"
        assert (await other.answer(user, second)).response == "second"


async def test_a09_draining_ends_runs_with_their_text_and_takes_no_more(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        llm.script(hang_after(2))
        turn = await service.start_turn(user, ask(), "en")
        await until_text(service, user, turn.run_id, "two")
        await service.drain()
        seen = await read(service, user, turn.run_id)
        assert seen.text == "one two "
        assert [event["code"] for event in seen.of("error")] == ["server_shutdown"]
        assert seen.events[-1]["status"] == "interrupted"
        with pytest.raises(Draining):
            await service.start_turn(user, ask("more", "other"), "en")
        assert (await service.messages(user, "other")).messages == []


async def test_a_run_that_is_claimed_while_draining_begins_is_ended_too(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM(default=hang_after(0)) as llm, worker(engine, llm) as service:
        async with transaction(engine) as connection:
            await connection.execute(text("select 1 from users for update"))
            starting = asyncio.create_task(service.start_turn(user, ask(), "en"))
            await asyncio.sleep(0.3)
            await service.drain()
        turn = await starting
        assert (await service.answer(user, turn)).status == "interrupted"


async def test_a_user_has_a_limit_of_active_runs(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM(default=hang_after(1)) as llm, worker(engine, llm, max_runs_per_user=2) as service:
        for name in ("one", "two"):
            await service.start_turn(user, ask(session_id=name), "en")
        with pytest.raises(TooManyRuns):
            await service.start_turn(user, ask(session_id="three"), "en")
        assert (await service.messages(user, "three")).messages == []
        await service.start_turn(await new_user(engine, "bob"), ask(), "en")


async def test_a_worker_has_a_limit_of_active_runs(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM(default=hang_after(1)) as llm, worker(engine, llm, max_runs_per_worker=1) as service:
        await service.start_turn(user, ask(session_id="one"), "en")
        with pytest.raises(TooManyRuns):
            await service.start_turn(user, ask(session_id="two"), "en")


async def test_an_old_key_is_released(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        first = await whole_turn(service, user, ask(client_message_id="k"))
        await service._runs.sweep()
        assert (await whole_turn(service, user, ask(client_message_id="k"))).run_id == first.run_id
        async with transaction(engine) as connection:
            await connection.execute(text("update runs set created_at = now() - interval '25 hours'"))
        await service._runs.sweep()
        assert (await whole_turn(service, user, ask(client_message_id="k"))).run_id != first.run_id


async def test_a_second_end_of_a_run_changes_nothing(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        turn = await whole_turn(service, user)
        before = await service.answer(user, turn)
        ref = (await service._run(user, turn.run_id)).ref
        for worker_id in (service._worker_id, None):
            end = TurnEnd(status="failed", content="")
            assert not await service.storage.finish_turn(ref, end, None, 99, worker_id=worker_id)
        assert await service.answer(user, turn) == before
