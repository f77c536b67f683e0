"""Token buckets: in Redis, shared by all workers; in this process while Redis is gone.

Without Redis each worker counts alone, so with N workers up to N times the rate can pass, and what was used before the
outage is forgotten. That is the answer on purpose: refusing everyone would make Redis a part that must not fail, and
letting everything through would make an outage the moment to guess passwords.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from backend.errors import RateLimited
from backend.infra.cache import Cache

MAX_LOCAL_BUCKETS = 10_000

# KEYS[1] bucket; ARGV capacity, tokens a second, life in seconds. The clock is the server's: workers may disagree.
# Answers 0 when the token was taken, else the milliseconds until there is one.
_SCRIPT = """
local capacity, rate = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local bucket = redis.call('HMGET', KEYS[1], 't', 'n')
local last, tokens = tonumber(bucket[1]) or now, tonumber(bucket[2]) or capacity
tokens = math.min(capacity, tokens + math.max(0, now - last) * rate)
local wait = 0
if tokens >= 1 then tokens = tokens - 1 else wait = math.ceil((1 - tokens) / rate * 1000) end
redis.call('HSET', KEYS[1], 't', string.format('%.6f', now), 'n', string.format('%.6f', tokens))
redis.call('EXPIRE', KEYS[1], ARGV[3])
return wait
"""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class LocalBuckets:
    """Token buckets of this process; the least recently used are forgotten beyond ``MAX_LOCAL_BUCKETS``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, key: str, per_minute: int) -> float:
        """Take a token: 0 when there was one, else the seconds until there is."""
        now, rate = self._clock(), per_minute / 60
        bucket = self._buckets.pop(key, None) or _Bucket(tokens=per_minute, at=now)
        bucket.tokens = min(per_minute, bucket.tokens + (now - bucket.at) * rate)
        bucket.at = now
        self._buckets[key] = bucket
        if len(self._buckets) > MAX_LOCAL_BUCKETS:
            self._buckets.popitem(last=False)
        if bucket.tokens < 1:
            return (1 - bucket.tokens) / rate
        bucket.tokens -= 1
        return 0


class RateLimiter:
    """Buckets that hold ``per_minute`` tokens and fill at that rate; a rate of 0 lets everything pass."""

    def __init__(self, cache: Cache, *, local: LocalBuckets | None = None) -> None:
        self._cache = cache
        self._script = cache.script(_SCRIPT)
        self._local = local or LocalBuckets()

    async def check(self, key: str, per_minute: int) -> None:
        """Take one token of ``key``. Raises :class:`RateLimited` with the seconds to wait when there is none."""
        if per_minute == 0:
            return
        wait = await self._shared(key, per_minute)
        if wait is None:
            wait = self._local.take(key, per_minute)
        if wait > 0:
            raise RateLimited(retry_after=wait)

    async def _shared(self, key: str, per_minute: int) -> float | None:
        """As :meth:`LocalBuckets.take`, in Redis; ``None`` when Redis is gone."""
        life = 61  # an empty bucket is full again after a minute, whatever its size
        answer = await self._cache.run_script(self._script, [f"rate:{key}"], [per_minute, per_minute / 60, life])
        return None if answer is None else int(answer) / 1000
