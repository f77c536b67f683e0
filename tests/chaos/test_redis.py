"""Redis stopped, silent, emptied, full, read only and slow under streams: they go on, and nobody sees another's."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisGone
from sqlalchemy import URL

from backend.infra.embedded.valkey import embedded_valkey
from tests.acceptance.metrics import metric
from tests.acceptance.rack import Rack
from tests.acceptance.test_one_session import echo
from tests.acceptance.test_without_redis import refuse_writes
from tests.chaos.rig import NOBODY_DIES, Trial, pair
from tests.support.chat_client import Client, Stream
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass
class OwnValkey:
    """A Valkey that the experiment may end and start."""

    directory: Path
    uses: ExitStack = field(default_factory=ExitStack)
    url: str = ""

    async def start(self) -> None:
        self.url = await asyncio.to_thread(self.uses.enter_context, embedded_valkey(self.directory))

    async def end(self) -> None:
        async with Redis.from_url(self.url) as redis:
            try:
                await redis.shutdown(nosave=True)
            except RedisGone:
                return


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def valkey() -> AsyncIterator[OwnValkey]:
    with TemporaryDirectory(prefix="citewire-valkey-", ignore_cleanup_errors=True) as directory:
        own = OwnValkey(Path(directory))
        await own.start()
        yield own
        await asyncio.to_thread(own.uses.close)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(postgres_url: URL, valkey: OwnValkey, worker_id: str) -> AsyncIterator[Rack]:
    async with pair(postgres_url, valkey.url, f"chaos_redis_{worker_id}", NOBODY_DIES) as made:
        yield made


async def stopped(trial: Trial, own: OwnValkey) -> None:
    await own.end()


async def silent(trial: Trial, own: OwnValkey) -> None:
    trial.at.redis.blackhole()


async def emptied(trial: Trial, own: OwnValkey) -> None:
    async with Redis.from_url(own.url) as redis:
        for _ in range(20):
            await redis.flushall()
            await asyncio.sleep(trial.random.uniform(0, 0.05))


async def full(trial: Trial, own: OwnValkey) -> None:
    await refuse_writes(own.url, "full")


async def read_only(trial: Trial, own: OwnValkey) -> None:
    await refuse_writes(own.url, "read only")


async def slow(trial: Trial, own: OwnValkey) -> None:
    trial.at.redis.delay = 0.4


async def back(trial: Trial, own: OwnValkey) -> None:
    """Redis as it was."""
    await own.start()
    await trial.at.redis.restore()
    async with Redis.from_url(own.url) as redis:
        await redis.execute_command("REPLICAOF", "NO", "ONE")
        await redis.config_set("maxmemory", "256mb")
        await redis.config_set("maxmemory-policy", "allkeys-lru")
    await until(lambda: all_ok(trial))


async def all_ok(trial: Trial) -> bool:
    return [await metric(server.url, "active_runs") for server in (trial.owner, trial.other)] == [0, 0]


FAULTS: dict[str, Callable[[Trial, OwnValkey], Awaitable[None]]] = {
    "stopped": stopped,
    "silent": silent,
    "FLUSHALL": emptied,
    "full (OOM)": full,
    "read only": read_only,
    "slow": slow,
}


async def streams_of(client: Client, name: str, count: int) -> list[Stream]:
    """Whole turns at once, each in a session that is named after its user."""
    return await asyncio.gather(*(client.ask(f"{name} asks {n}", f"{name}-{n}") for n in range(count)))


async def reads(trial: Trial, client: Client, name: str) -> float:
    """Lists and sessions over and over, some given up before their answer: each user is shown their own alone.

    Ends by being cancelled, and gives the longest time that a list took, in seconds.
    """
    longest = 0.0
    with suppress(asyncio.CancelledError):
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(trial.random.choice([60, 60, trial.random.uniform(0, 0.05)])):
                    started = time.monotonic()
                    sessions = (await client.get("/sessions")).json()["sessions"]
                    longest = max(longest, time.monotonic() - started)
                    assert sessions
                    assert {session["session_id"].partition("-")[0] for session in sessions} == {name}
                    for message in await client.messages(f"{name}-0"):
                        assert message["content"].startswith(name) or message["content"] == ""
            await asyncio.sleep(0.05)
    return longest


@pytest.mark.parametrize("fault", FAULTS)
async def test_redis(trial: Trial, valkey: OwnValkey, fault: str):
    """A fault of Redis under 20 streams of two users"""
    trial.at.llm.default = echo
    half = trial.size(10, 3)
    async with trial.user() as (ann, ann_there), trial.user() as (bob_there, bob):
        await asyncio.gather(ann.ask("ann asks", "ann-0"), bob.ask("bob asks", "bob-0"))
        await asyncio.gather(ann_there.messages("ann-0"), bob_there.messages("bob-0"))
        streaming = asyncio.gather(streams_of(ann, "ann", half), streams_of(bob, "bob", half))
        await trial.at.llm.wait_for_chats(half)
        reading = [asyncio.create_task(reads(trial, c, n)) for c, n in ((ann_there, "ann"), (bob_there, "bob"))]
        try:
            await FAULTS[fault](trial, valkey)
            during = await streaming
            after = await asyncio.gather(streams_of(ann_there, "ann", 2), streams_of(bob_there, "bob", 2))
        finally:
            for task in reading:
                task.cancel()
            longest = max(await asyncio.gather(*reading))
            await back(trial, valkey)
        trial.note("slowest_list_seconds", longest)
        seen = [stream for group in (*during, *after) for stream in group]
        assert {stream.one("done")["status"] for stream in seen} == {"completed"}
        for client, name in ((ann, "ann"), (bob_there, "bob")):
            sessions = (await client.get("/sessions", params={"limit": 200})).json()["sessions"]
            assert {session["session_id"] for session in sessions} == {f"{name}-{n}" for n in range(half)}
            for number in range(half):
                messages = await client.messages(f"{name}-{number}")
                assert len(messages) == 2 + 2 * (number < 2) + 2 * (number == 0)
    await trial.check(*seen, turns=2 * half + 6)
