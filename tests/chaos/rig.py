"""What the experiments share: two workers of different kinds on one database, one account at both, a seed."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
from redis.asyncio import Redis
from sqlalchemy import URL

from backend.chat.wakeups import channel_of
from tests.acceptance.metrics import metric
from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client, Stream, signed_in
from tests.support.server import ServerProcess
from tests.support.waiting import ended, until

LEASE_SECONDS = 3.0
"""Lowered, so that a repair is soon seen; on a busy machine a worker must still renew it in time."""
WORDS = "one two three four five six seven eight nine ten "
HALF = "one two three four five "
NEVER = 600.0
ENV = {"LEASE_SECONDS": f"{LEASE_SECONDS:g}", "MODEL_TITLES": "false"}
NOBODY_DIES = {"LEASE_SECONDS": "10"}
"""The default: what no repair is waited for."""
FROM_THE_TABLE = {"EVENT_MEMORY_LOG": "false"}


@dataclass
class Trial:
    """One repeat of an experiment. ``owner`` is the worker that answers, ``other`` the second: one of the two shows
    runs from memory, the other from the table, and they change places from repeat to repeat."""

    at: Rack
    owner: ServerProcess
    other: ServerProcess
    random: random.Random
    full: bool
    """The numbers of the experiment, not those of its short form."""
    note: Callable[[str, float], None]
    turns: int = 0
    seen: list[Stream] = field(default_factory=list)

    def size(self, full: int, short: int) -> int:
        """How many, in each form."""
        return full if self.full else short

    async def check(self, *seen: Stream, turns: int | None = None) -> None:
        """INV, at both workers; ``seen`` is what clients got of the ``turns`` that were accepted."""
        await self.at.check(*seen, turns=turns)
        await until(self._nothing_left)
        for server in (self.owner, self.other):
            assert '"turn_crashed"' not in server.logs()

    async def _nothing_left(self) -> bool:
        urls = (self.owner.url, self.other.url)
        return [await metric(url, name) for url in urls for name in ("active_runs", "stream_subscribers")] == [0] * 4

    @asynccontextmanager
    async def user(self) -> AsyncIterator[tuple[Client, Client]]:
        """A new account, at the owner and at the other worker."""
        async with signed_in(self.owner.url, kept=0) as here, self.same(here) as there:
            yield here, there

    @asynccontextmanager
    async def same(self, client: Client, at: ServerProcess | None = None) -> AsyncIterator[Client]:
        """The account of ``client`` at the other worker, or at that of ``at``, on connections of its own."""
        token = client.http.headers["authorization"].removeprefix("Bearer ")
        async with signed_in((at or self.other).url, client.name, token, kept=0) as again:
            yield again


@asynccontextmanager
async def pair(postgres_url: URL, valkey_url: str, name: str, env: dict[str, str] | None = None) -> AsyncIterator[Rack]:
    """Two workers; the first shows its runs from memory, the second from the table."""
    async with rack(postgres_url, valkey_url, name, {**ENV, **(env or {})}, peer=True, peer_env=FROM_THE_TABLE) as made:
        yield made


@asynccontextmanager
async def asking(client: Client, message: str, key: str, **fields: Any) -> AsyncIterator[list[Stream]]:
    """A turn whose stream is read meanwhile, until it ends or breaks: none if no answer came."""
    got: list[Stream] = []

    async def read() -> None:
        with suppress(httpx.TransportError):
            async with client.stream(message, key=key, **fields) as stream:
                got.append(stream)
                await stream.end(NEVER)

    task = asyncio.create_task(read())
    try:
        yield got
    finally:
        task.cancel()
        await ended([task])
        if not task.cancelled():
            task.result()


async def resumed(stream: Stream, *clients: Client) -> Stream:
    """``stream`` with the rest of its run, asked for until it is there, at one client after the other."""
    for client in itertools.cycle(clients):
        if stream.done:
            break
        with suppress(httpx.TransportError):
            async with client.follow(stream.run_id, stream.last_seq) as more:
                if more.response.status_code == 200:
                    try:
                        await more.end(NEVER)
                    finally:
                        stream.events += more.events
                        stream.done = more.done
        await asyncio.sleep(0.05)
    return stream


async def whole(at: Rack) -> None:
    """As at the start: both workers run and listen, nothing is stored, no fault is left."""
    assert at.peer is not None
    await at.postgres.restore()
    await at.redis.restore()
    for server in (at.server, at.peer):
        if server.returncode is not None:
            await server.start(wait=False)
    for server in (at.server, at.peer):
        await server.wait_ready()
    await at.reset()
    at.llm._decisions.clear()
    await until(lambda: _both_listen(at))


async def _both_listen(at: Rack) -> bool:
    async with Redis.from_url(at.valkey_url) as redis:
        return next(iter(await redis.pubsub_numsub(channel_of(redis))))[1] >= 2


def messages_of(rows: list[dict[str, Any]], kind: str) -> list[str]:
    """The texts of that kind, in their order."""
    return [message["content"] for message in rows if message["type"] == kind]
