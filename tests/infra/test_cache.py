"""The cache with Redis there, gone, silent and back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from redis.asyncio import Redis

from backend.infra.cache import Cache, create_redis
from tests.support.fault_proxy import FaultProxy


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(Path(urlsplit(redis_url).path)) as proxy:
        yield proxy


@pytest.fixture
async def cache(redis_url: str) -> AsyncIterator[Cache]:
    redis = create_redis(redis_url)
    yield Cache(redis)
    await redis.aclose()


def _url_through(proxy: FaultProxy, redis_url: str) -> str:
    number = parse_qs(urlsplit(redis_url).query)["db"][0]
    return f"redis://{proxy.host}:{proxy.port}/{number}"


@pytest.fixture
async def proxied(proxy: FaultProxy, redis_url: str) -> AsyncIterator[Cache]:
    redis = create_redis(_url_through(proxy, redis_url))
    yield Cache(redis, open_seconds=60)
    await redis.aclose()


async def test_set_get_delete_publish_script(cache: Cache) -> None:
    assert await cache.get("k") is None
    assert await cache.set("k", "välue", ex=60)
    assert await cache.get("k") == "välue".encode()
    assert await cache.redis.ttl("k") > 0
    assert await cache.delete("k", "absent")
    assert await cache.delete()
    assert await cache.get("k") is None
    assert await cache.publish("channel", b"x")
    script = cache.script("return {KEYS[1], ARGV[1]}")
    assert await cache.run_script(script, ["k"], ["a"]) == [b"k", b"a"]
    await cache.redis.script_flush()
    assert await cache.run_script(script, ["k"], [1]) == [b"k", b"1"]
    assert await cache.ping()
    assert not cache.degraded


async def _all_misses(cache: Cache) -> None:
    script = cache.script("return 1")
    assert await cache.get("k") is None
    assert not await cache.set("k", "v", ex=60)
    assert not await cache.delete("k")
    assert not await cache.publish("c", "m")
    assert await cache.run_script(script, [], []) is None
    assert not await cache.ping()
    assert cache.degraded


async def test_nobody_there_is_a_miss(tmp_path: Path) -> None:
    for url in (f"unix://{tmp_path}/none", "redis://127.0.0.1:1/0", "redis://no-such-host.invalid:6379"):
        redis = create_redis(url)
        await _all_misses(Cache(redis))
        await redis.aclose()


async def test_a_silent_redis_is_asked_once(proxied: Cache, proxy: FaultProxy) -> None:
    assert await proxied.set("k", "v", ex=60)
    proxy.blackhole()
    before = proxy.accepted
    await _all_misses(proxied)
    assert proxy.accepted == before  # the one call used the open connection; the five after it never left
    await proxy.restore()


async def test_a_redis_that_is_silent_from_the_start_is_asked_once(proxied: Cache, proxy: FaultProxy) -> None:
    proxy.blackhole()
    await _all_misses(proxied)
    assert proxy.accepted == 1
    await proxy.restore()


async def test_a_cut_connection_is_a_miss(proxied: Cache, proxy: FaultProxy) -> None:
    assert await proxied.set("k", "v", ex=60)
    proxy.refuse()
    await _all_misses(proxied)
    await proxy.restore()


async def test_after_the_pause_one_call_tries_and_the_circuit_closes(proxy: FaultProxy, redis_url: str) -> None:
    redis = create_redis(_url_through(proxy, redis_url))
    cache = Cache(redis, open_seconds=0.05)
    assert await cache.set("k", "v", ex=60)
    proxy.refuse()
    assert await cache.get("k") is None
    await asyncio.sleep(0.06)
    assert await cache.get("k") is None
    assert cache.degraded
    await proxy.restore()
    await asyncio.sleep(0.06)
    assert await cache.get("k") == b"v"
    assert not cache.degraded
    await redis.aclose()


async def test_while_one_call_tries_the_others_pass_by(proxy: FaultProxy, redis_url: str) -> None:
    redis = create_redis(_url_through(proxy, redis_url))
    cache = Cache(redis, open_seconds=0.01)
    proxy.blackhole()
    assert await cache.get("k") is None
    cache._open_seconds = 60  # the next failure keeps it open for the rest of the test
    await asyncio.sleep(0.02)
    assert await asyncio.gather(*(cache.get("k") for _ in range(20))) == [None] * 20
    assert proxy.accepted == 2
    await proxy.restore()
    await redis.aclose()


async def test_an_error_of_the_command_opens_nothing(cache: Cache) -> None:
    await cache.redis.lpush("list", "x")
    assert await cache.get("list") is None
    assert await cache.run_script(cache.script("return redis.call('NOPE')"), [], []) is None
    assert not cache.degraded
    assert await cache.set("k", "v", ex=60)


async def test_cancelled_calls_leave_no_foreign_answers(redis_url: str) -> None:
    redis = Redis.from_url(redis_url)
    cache = Cache(redis, timeout=30)  # nothing is a miss because the machine is busy
    for n in range(50):
        await cache.set(f"k{n}", f"v{n}", ex=60)
    for delay in range(20):
        tasks = [asyncio.create_task(cache.get(f"k{n}")) for n in range(50)]
        for _ in range(delay):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[1::2] == [f"v{n}".encode() for n in range(1, 50, 2)]
    assert await asyncio.gather(*(cache.get(f"k{n}") for n in range(50))) == [f"v{n}".encode() for n in range(50)]
    assert not cache.degraded
    await redis.aclose()


async def test_a_cancelled_call_is_cancelled(proxied: Cache, proxy: FaultProxy) -> None:
    proxy.blackhole()
    task = asyncio.create_task(proxied.get("k"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not proxied.degraded
    await proxy.restore()


@pytest.mark.parametrize("url", ["", "http://localhost", "valkey+unix:///tmp/x", "localhost:6379"])
def test_another_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="Redis URL"):
        create_redis(url)
