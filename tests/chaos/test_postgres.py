"""PostgreSQL killed and back, and silent beyond every lease, under streams."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import URL

from backend.infra.embedded.postgres import embedded_postgres
from tests.acceptance.rack import Rack
from tests.chaos.rig import WORDS, Trial, pair, resumed
from tests.conftest import open_directory
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import text

pytestmark = pytest.mark.asyncio(loop_scope="session")
ENV = {"LEASE_SECONDS": "30"}
"""Longer than the restart, shorter than the silence."""
KILLED_SECONDS = 5.0
SILENT_SECONDS = 60.0


@dataclass
class OwnPostgres:
    """A PostgreSQL that the experiment may kill and start."""

    directory: Path
    uses: ExitStack = field(default_factory=ExitStack)

    async def start(self) -> URL:
        return await asyncio.to_thread(self.uses.enter_context, embedded_postgres(self.directory))

    def kill9(self) -> None:
        pid_file = (self.directory / "postgres").resolve() / "postmaster.pid"
        os.kill(int(pid_file.read_text().splitlines()[0]), signal.SIGKILL)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def own() -> AsyncIterator[OwnPostgres]:
    postgres = OwnPostgres(open_directory("citewire-postgres-"))
    yield postgres
    await asyncio.to_thread(postgres.uses.close)
    rmtree(postgres.directory, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(own: OwnPostgres, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    async with pair(await own.start(), valkey_url, f"chaos_own_{worker_id}", ENV) as made:
        yield made


async def killed(trial: Trial, own: OwnPostgres) -> None:
    own.kill9()
    await asyncio.sleep(KILLED_SECONDS if trial.full else 0.5)
    await own.start()


async def silent(trial: Trial, own: OwnPostgres) -> None:
    trial.at.postgres.blackhole()
    await asyncio.sleep(SILENT_SECONDS if trial.full else 2)
    await trial.at.postgres.restore()


FAULTS: dict[str, tuple[Callable[[Trial, OwnPostgres], Awaitable[None]], set[str]]] = {
    "killed, back after 5 s": (killed, {"completed"}),
    "silent for 60 s": (silent, {"completed", "interrupted", "failed"}),
}


async def read(stream: Stream) -> None:
    """To its end, or until it breaks."""
    try:
        await stream.end(600)
    except httpx.TransportError:
        return


@pytest.mark.parametrize("fault", FAULTS)
async def test_postgres(trial: Trial, alice: tuple[Client, Client], own: OwnPostgres, fault: str):
    """A fault of PostgreSQL under 20 streams"""
    trial.at.llm.default = text(WORDS * 4, delay=0.1)
    half = trial.size(10, 3)
    inflict, ends = FAULTS[fault]
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(client.stream(session_id=f"s{number}-{place}"))
            for number in range(half)
            for place, client in enumerate(alice)
        ]
        await asyncio.gather(*(stream.until_text("two") for stream in opened))
        await asyncio.gather(inflict(trial, own), *(read(stream) for stream in opened))
    broken = sum(not stream.done for stream in opened)
    trial.note("streams_resumed", broken)
    await asyncio.gather(*(resumed(stream, *reversed(alice)) for stream in opened))
    statuses = [(await alice[1].run(stream.run_id))["status"] for stream in opened]
    assert set(statuses) <= (ends if trial.full else {"completed"})
    trial.note("interrupted", sum(status != "completed" for status in statuses))
    trial.at.llm.default = text("And on.")
    for number in range(half):
        for place, client in enumerate(alice):
            assert (await client.ask("Go on.", f"s{number}-{place}")).text == "And on."
    await trial.check(*opened, turns=4 * half)
