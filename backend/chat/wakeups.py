"""Hints between workers: a run has new events, or was asked to stop. They save the wait for the next poll, no more.

They go through Redis publish, so each may be lost, and none says anything that is not looked up in PostgreSQL again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, cast
from uuid import UUID

from redis.asyncio import Redis
from redis.exceptions import RedisError

from backend.infra.cache import Cache

QUIET_SECONDS = 5.0
"""After so long without a word Redis is asked whether it is there; after as long again it is connected to anew."""
RETRY_SECONDS = 1.0
_EVENTS, _STOP = b"e", b"s"
_ID_BYTES = 16


def channel_of(redis: Redis) -> str:
    """The channel of the workers on this database: Redis itself has one set of channels for all its databases."""
    database = redis.connection_pool.connection_kwargs.get("db", 0)  # pyright: ignore[reportUnknownMemberType]  # untyped
    return f"citewire:wakeups:{database}"


class Wakeups:
    """One subscription for each worker, whatever number of streams it has. Sending waits for nothing.

    What is to be sent is a set of run ids, so it is never more than there are runs.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._channel = channel_of(cache.redis)
        self._outbox: dict[bytes, set[UUID]] = {_EVENTS: set(), _STOP: set()}
        self._due = asyncio.Event()
        self._readers: defaultdict[UUID, set[asyncio.Event]] = defaultdict(set)
        self._tasks: list[asyncio.Task[None]] = []
        self.stop_asked = asyncio.Event()
        """Set when some run, perhaps of this worker, was asked to stop. Whoever looks clears it."""

    def start(self) -> None:
        """Begin to send and to receive."""
        self._tasks = [asyncio.create_task(self._send_forever()), asyncio.create_task(self._receive_forever())]

    async def close(self) -> None:
        """Stop; nothing more is sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def events(self, run_ids: Iterable[UUID]) -> None:
        """Tell the other workers that these runs have new events in the table, or have ended."""
        self._send(_EVENTS, run_ids)

    def stop(self, run_id: UUID) -> None:
        """Tell the worker that has this run to look whether it should stop."""
        self._send(_STOP, [run_id])

    @contextmanager
    def reading(self, run_id: UUID) -> Generator[asyncio.Event]:
        """An event that is set whenever the run has something new; the reader clears it before it looks."""
        heard = asyncio.Event()
        self._readers[run_id].add(heard)
        try:
            yield heard
        finally:
            self._readers[run_id].discard(heard)
            if not self._readers[run_id]:
                del self._readers[run_id]

    def _send(self, kind: bytes, run_ids: Iterable[UUID]) -> None:
        self._outbox[kind].update(run_ids)
        self._due.set()

    async def _send_forever(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            for kind, ids in self._outbox.items():
                if ids:
                    message = kind + b"".join(run_id.bytes for run_id in ids)
                    ids.clear()
                    await self._cache.publish(self._channel, message)

    async def _receive_forever(self) -> None:
        while True:
            try:
                await self._receive()
            except (RedisError, OSError, TimeoutError, RuntimeError):
                # RuntimeError: what uvloop says of a connection that was reset. The cache logs that Redis is away.
                await asyncio.sleep(RETRY_SECONDS)

    async def _receive(self) -> None:
        """Take hints until the connection is lost."""
        async with self._cache.redis.pubsub() as channel:  # pyright: ignore[reportUnknownMemberType]  # untyped
            await channel.subscribe(self._channel)
            asked = False
            while True:
                # listen() would wait for ever, on a dead connection too.
                message = cast("dict[str, Any] | None", await channel.get_message(timeout=QUIET_SECONDS))
                if message is None and asked:
                    raise TimeoutError
                if message is None:
                    await channel.ping()  # pyright: ignore[reportUnknownMemberType]  # untyped
                elif message["type"] == "message":
                    self._take(message["data"])
                asked = message is None

    def _take(self, data: bytes) -> None:
        kind, ids = data[:1], data[1:]
        if kind == _STOP:
            self.stop_asked.set()
        elif kind == _EVENTS and self._readers:
            for at in range(0, len(ids) - _ID_BYTES + 1, _ID_BYTES):
                for heard in self._readers.get(UUID(bytes=ids[at : at + _ID_BYTES]), ()):
                    heard.set()
