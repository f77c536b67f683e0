"""Token buckets, in Redis and without it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend.errors import RateLimited
from backend.infra.cache import Cache, create_redis
from backend.infra.rate_limit import MAX_LOCAL_BUCKETS, LocalBuckets, RateLimiter


@pytest.fixture
async def cache(redis_url: str) -> AsyncIterator[Cache]:
    redis = create_redis(redis_url)
    yield Cache(redis)
    await redis.aclose()


@pytest.fixture
async def no_redis(tmp_path: Path) -> AsyncIterator[Cache]:
    redis = create_redis(f"unix://{tmp_path}/none")
    yield Cache(redis)
    await redis.aclose()


async def _passes(limiter: RateLimiter, key: str, per_minute: int, attempts: int) -> int:
    results = await asyncio.gather(*(limiter.check(key, per_minute) for _ in range(attempts)), return_exceptions=True)
    assert all(result is None or isinstance(result, RateLimited) for result in results)
    return sum(result is None for result in results)


async def test_a_bucket_is_shared_by_all_workers(cache: Cache) -> None:
    workers = [RateLimiter(cache), RateLimiter(cache)]
    passed = await asyncio.gather(*(_passes(worker, "a", 5, 10) for worker in workers))
    assert sum(passed) == 5
    assert await _passes(workers[0], "b", 5, 5) == 5


async def test_the_wait_is_told(cache: Cache) -> None:
    limiter = RateLimiter(cache)
    await limiter.check("a", 1)
    with pytest.raises(RateLimited) as caught:
        await limiter.check("a", 1)
    assert caught.value.retry_after is not None
    assert 30 < caught.value.retry_after <= 60


async def test_a_bucket_in_redis_fills_again(cache: Cache) -> None:
    limiter = RateLimiter(cache)
    assert await _passes(limiter, "a", 1200, 1200) == 1200
    await asyncio.sleep(0.5)  # ten tokens; fewer than all of them however slow this machine is
    assert await _passes(limiter, "a", 1200, 15) >= 1


async def test_buckets_end_by_themselves_and_hold_no_name(cache: Cache) -> None:
    await RateLimiter(cache).check("a", 5)
    assert 0 < await cache.redis.ttl("rate:a") <= 61


async def test_zero_turns_a_limit_off(cache: Cache) -> None:
    assert await _passes(RateLimiter(cache), "a", 0, 100) == 100
    assert await cache.redis.keys("*") == []


async def test_without_redis_this_process_counts(no_redis: Cache) -> None:
    limiter = RateLimiter(no_redis)
    assert await _passes(limiter, "a", 5, 10) == 5
    assert await _passes(limiter, "b", 5, 5) == 5


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_local_buckets_fill_at_the_rate_and_never_above_their_size() -> None:
    clock = Clock()
    buckets = LocalBuckets(clock)
    assert [buckets.take("a", 6) for _ in range(7)] == [0] * 6 + [10.0]
    clock.now += 10
    assert buckets.take("a", 6) == 0
    assert buckets.take("a", 6) == pytest.approx(10)
    clock.now += 100_000
    assert sum(buckets.take("a", 6) == 0 for _ in range(20)) == 6


def test_local_buckets_are_bounded() -> None:
    buckets = LocalBuckets(Clock())
    for n in range(MAX_LOCAL_BUCKETS + 100):
        buckets.take(str(n), 5)
    assert len(buckets._buckets) == MAX_LOCAL_BUCKETS
