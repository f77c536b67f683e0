"""Redis as a cache: a fault is a miss, costs at most 250 ms, and then nothing for a while.

Redis only makes things faster; no caller may depend on an answer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import MaxConnectionsError, RedisError, ResponseError

from backend.log import get_logger
from backend.metrics import CACHE_FAILURES

T = TypeVar("T")

TIMEOUT_SECONDS = 0.25
OPEN_SECONDS = 5.0
MAX_CONNECTIONS = 200
_log = get_logger(__name__)


def create_redis(url: str) -> Redis:
    """A client for ``redis://``, ``rediss://`` or ``unix://``: RESP3, no retries, 250 ms a step. Connects on first use.

    Raises ``ValueError`` for another address. Close it with ``aclose()``.
    """
    return Redis.from_url(  # pyright: ignore[reportUnknownMemberType]  # **kwargs is untyped
        url,
        protocol=3,
        socket_timeout=TIMEOUT_SECONDS,
        socket_connect_timeout=TIMEOUT_SECONDS,
        retry=Retry(NoBackoff(), 0),
        max_connections=MAX_CONNECTIONS,
    )


class Cache:
    """Redis behind a circuit breaker.

    Each call takes ``timeout`` seconds at most, connecting included. The first failure opens the circuit: for
    ``open_seconds`` every call is a miss at once, then one call tries again while the others still pass by. An answer
    that is an error of the command (not of the connection) is a miss and opens nothing.
    """

    def __init__(self, redis: Redis, *, timeout: float = TIMEOUT_SECONDS, open_seconds: float = OPEN_SECONDS) -> None:
        self.redis = redis
        self._timeout = timeout
        self._open_seconds = open_seconds
        self._closed_again_at: float | None = None

    @property
    def degraded(self) -> bool:
        """Whether the last attempt failed."""
        return self._closed_again_at is not None

    async def ping(self) -> bool:
        """Whether Redis answers. Asked by the readiness check; uses and feeds the circuit like any call."""
        return await self._call(lambda: self.redis.ping()) is not None  # pyright: ignore[reportUnknownMemberType]

    async def get(self, key: str) -> bytes | None:
        """The value, or ``None``: absent or Redis is gone."""
        return await self._call(lambda: cast(Awaitable[bytes | None], self.redis.get(key)))

    async def set(self, key: str, value: bytes | str, *, ex: int) -> bool:
        """Store ``value`` for ``ex`` seconds. Whether it was stored."""
        return bool(await self._call(lambda: cast(Awaitable[bool | None], self.redis.set(key, value, ex=ex))))

    async def delete(self, *keys: str) -> bool:
        """Remove ``keys``. Whether Redis did so; if not, what is cached must be told stale by its version."""
        if not keys:
            return True
        return await self._call(lambda: self.redis.delete(*keys)) is not None

    async def publish(self, channel: str, message: bytes | str) -> bool:
        """Send ``message``. Whether Redis took it."""
        return await self._call(lambda: self.redis.publish(channel, message)) is not None  # pyright: ignore[reportUnknownMemberType]

    def script(self, source: str) -> AsyncScript:
        """A Lua script for :meth:`run_script`; loaded on first use and again after a flush."""
        return self.redis.register_script(source)  # pyright: ignore[reportUnknownMemberType]

    async def run_script(self, script: AsyncScript, keys: list[str], args: list[bytes | str | int | float]) -> Any:
        """The answer of ``script``, ``None`` when Redis is gone: so a script should answer something else."""
        return await self._call(lambda: cast(Awaitable[Any], script(keys=keys, args=args)))

    async def _call(self, command: Callable[[], Awaitable[T]]) -> T | None:
        if not self._admit():
            return None
        try:
            async with asyncio.timeout(self._timeout):
                answer = await command()
        except (ResponseError, MaxConnectionsError) as error:
            _log.warning("cache_command_failed", error=type(error).__name__)
            return None
        except (RedisError, OSError, TimeoutError, RuntimeError) as error:
            # RuntimeError: what uvloop says of a kept connection that the other side has reset.
            self._open(error)
            return None
        if self.degraded:
            self._closed_again_at = None
            _log.info("cache_recovered")
        return answer

    def _admit(self) -> bool:
        """Whether a call may go to Redis. When the pause is over the asking call is the one that tries."""
        if self._closed_again_at is None:
            return True
        if time.monotonic() < self._closed_again_at:
            return False
        self._closed_again_at = time.monotonic() + self._open_seconds
        return True

    def _open(self, error: Exception) -> None:
        CACHE_FAILURES.inc()
        if not self.degraded:
            _log.warning("cache_unavailable", error=type(error).__name__, pause_seconds=self._open_seconds)
        self._closed_again_at = time.monotonic() + self._open_seconds
