"""Hints from worker to worker by Redis: with them nothing waits for a poll, without them everything does."""

import asyncio
from uuid import UUID

import pytest
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine
from uuid_utils.compat import uuid7

from backend.chat import runs, subscription, wakeups
from backend.chat.subscription import Look
from backend.chat.wakeups import Wakeups, channel_of
from backend.infra.cache import Cache, create_redis
from tests.chat.workers import ask, new_user, no_redis, read, until_text, worker
from tests.support.databases import redis_proxy
from tests.support.fake_llm import FakeLLM, hang_after
from tests.support.fake_llm import text as says
from tests.support.waiting import until

NEVER = 600.0


@pytest.fixture
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is seen now is seen by a hint."""
    monkeypatch.setattr(subscription, "POLL_SECONDS", NEVER)
    monkeypatch.setattr(runs, "STOP_POLL_SECONDS", NEVER)


async def subscribers(redis_url: str) -> int:
    async with Redis.from_url(redis_url) as redis:
        return next(iter(await redis.pubsub_numsub(channel_of(redis))))[1]


async def connected(redis_url: str, count: int) -> None:
    """Wait until so many workers listen."""

    async def listening() -> bool:
        return await subscribers(redis_url) == count

    await until(listening)


async def test_a_stream_and_a_stop_on_another_worker_wait_for_no_poll(
    engine: AsyncEngine, redis_url: str, no_polling: None
):
    user = await new_user(engine)
    async with (
        FakeLLM() as llm,
        worker(engine, llm, redis_url=redis_url) as first,
        worker(engine, llm, redis_url=redis_url) as second,
    ):
        await connected(redis_url, 2)
        llm.script(hang_after(5))
        turn = await first.start_turn(user, ask(), "en")
        reading = asyncio.create_task(read(second, user, turn.run_id))
        await until_text(second, user, turn.run_id, "five")
        assert (await second.stop(user, turn.run_id)).run_id == str(turn.run_id)
        seen = await asyncio.wait_for(reading, 30)
        assert seen.one("done")["status"] == "stopped"
        assert seen.text == "one two three four five "
    await connected(redis_url, 0)


async def test_one_subscription_serves_all_streams_of_a_worker(engine: AsyncEngine, redis_url: str):
    user = await new_user(engine)
    async with (
        FakeLLM() as llm,
        worker(engine, llm, redis_url=redis_url) as first,
        worker(engine, llm, redis_url=redis_url) as second,
    ):
        await connected(redis_url, 2)
        llm.default = hang_after(1)
        turns = [await first.start_turn(user, ask(session_id=f"s{number}"), "en") for number in range(3)]
        streams = [asyncio.create_task(read(second, user, turn.run_id)) for turn in turns for _ in range(3)]
        await until(lambda: second.subscriptions.count == 9)
        assert await subscribers(redis_url) == 2
        for turn in turns:
            await second.stop(user, turn.run_id)
        await asyncio.gather(*streams)
        assert second._wakeups._readers == {}


async def test_readers_of_one_run_look_once_for_all(
    engine: AsyncEngine, redis_url: str, no_polling: None, monkeypatch: pytest.MonkeyPatch
):
    user = await new_user(engine)
    async with (
        FakeLLM() as llm,
        worker(engine, llm, redis_url=redis_url) as first,
        worker(engine, llm, redis_url=redis_url) as second,
    ):
        await connected(redis_url, 2)
        looks: list[int] = []
        read_all = second.subscriptions._read

        async def counted(user_id: UUID, run_id: UUID, cursor: int) -> Look:
            looks.append(cursor)
            return await read_all(user_id, run_id, cursor)

        monkeypatch.setattr(second.subscriptions, "_read", counted)
        llm.script(says("one two three four five six", delay=0.3))
        turn = await first.start_turn(user, ask(), "en")
        streams = [asyncio.create_task(read(second, user, turn.run_id)) for _ in range(50)]
        leaving = asyncio.create_task(read(second, user, turn.run_id))
        await until(lambda: second.subscriptions.count == 51)
        leaving.cancel()  # takes nobody's look with it
        seen = await asyncio.gather(*streams)
    assert {stream.text for stream in seen} == {"one two three four five six"}
    assert all(stream.events == seen[0].events for stream in seen)
    assert len(looks) < 50
    assert second.subscriptions._looks == {}


async def test_without_redis_everything_goes_on_by_polling_and_later_by_hints_again(
    engine: AsyncEngine, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wakeups, "RETRY_SECONDS", 0.1)
    user = await new_user(engine)
    async with (
        redis_proxy(redis_url) as (proxy, through),
        FakeLLM() as llm,
        worker(engine, llm, redis_url=through) as first,
        worker(engine, llm, redis_url=through) as second,
    ):
        await connected(redis_url, 2)
        proxy.refuse()
        llm.script(hang_after(5))
        turn = await first.start_turn(user, ask(), "en")
        await until_text(second, user, turn.run_id, "five")
        await second.stop(user, turn.run_id)
        assert (await read(second, user, turn.run_id)).one("done")["status"] == "stopped"
        await proxy.restore()
        await connected(redis_url, 2)


async def test_a_silent_redis_is_found_out_and_connected_to_anew(redis_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wakeups, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(wakeups, "RETRY_SECONDS", 0.1)
    async with redis_proxy(redis_url) as (proxy, through):
        cache = Cache(create_redis(through))
        hints = Wakeups(cache)
        hints.start()
        await connected(redis_url, 1)
        before = proxy.accepted
        await asyncio.sleep(0.5)
        assert proxy.accepted == before  # quiet is not silent: it answers when it is asked
        proxy.blackhole()
        await until(lambda: proxy.accepted > before)
        await proxy.restore()
        run_id = uuid7()
        with hints.reading(run_id) as heard:
            async with Redis.from_url(redis_url) as redis:

                async def arrives() -> bool:
                    await redis.publish(channel_of(redis), b"e" + run_id.bytes)
                    return heard.is_set()

                await until(arrives)
        await hints.close()
        await cache.redis.aclose()


async def test_nonsense_on_the_channel_changes_nothing():
    hints = Wakeups(no_redis())
    run_id = uuid7()
    with hints.reading(run_id) as heard:
        for data in (b"", b"e", b"e123", b"x" + run_id.bytes, b"\xff" * 100):
            hints._take(data)
        assert not heard.is_set()
        assert not hints.stop_asked.is_set()
        hints._take(b"e" + uuid7().bytes + run_id.bytes + b"rest")
        assert heard.is_set()
    hints._take(b"s" + run_id.bytes)
    assert hints.stop_asked.is_set()


async def test_hints_that_nobody_can_take_are_no_more_than_there_are_runs():
    hints = Wakeups(no_redis())
    run_ids = [uuid7() for _ in range(10)]
    for _ in range(100):
        hints.events(run_ids)
    assert sum(map(len, hints._outbox.values())) == 10
