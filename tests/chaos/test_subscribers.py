"""Many readers of a few runs, who leave and come back: each gets every event once, in order."""

import asyncio
from contextlib import AsyncExitStack, suppress

import httpx
import pytest

from tests.chaos.rig import Trial
from tests.support.chat_client import Client, EndOfStream, Stream
from tests.support.fake_llm import text

pytestmark = pytest.mark.asyncio(loop_scope="session")
RUNS = 10


async def join(
    https: list[httpx.AsyncClient], trial: Trial, run_id: str, gathered: Stream | None, wanted: int
) -> Stream:
    """Read ``wanted`` more events of a run at any worker, after those that were gathered."""
    headers = {} if gathered is None else {"Last-Event-ID": str(gathered.last_seq)}
    async with trial.random.choice(https).stream("GET", f"/chat/runs/{run_id}/stream", headers=headers) as response:
        assert response.status_code == 200
        stream = Stream(response)
        with suppress(EndOfStream):  # it was dropped for slowness
            await stream.until(lambda got: len(got.events) >= wanted or got.done, 300)
    if gathered is None:
        return stream
    gathered.events += stream.events
    gathered.done = stream.done
    return gathered


async def coming_and_going(https: list[httpx.AsyncClient], trial: Trial, run_id: str) -> Stream:
    gathered = await join(https, trial, run_id, None, trial.random.randrange(0, 30))
    while not gathered.done:
        gathered = await join(https, trial, run_id, gathered, trial.random.randrange(1, 60))
    return gathered


async def frozen(https: list[httpx.AsyncClient], trial: Trial, run_id: str, thaw: asyncio.Event) -> Stream:
    """Join, read nothing until all others have it all, then go on."""
    async with trial.random.choice(https).stream("GET", f"/chat/runs/{run_id}/stream") as response:
        stream = Stream(response)
        await thaw.wait()
        try:
            await stream.end()
        except httpx.TransportError:
            assert not stream.done
    while not stream.done:
        stream = await join(https, trial, run_id, stream, 10_000)
    return stream


async def test_subscribers(trial: Trial, alice: tuple[Client, Client]):
    """500 clients join and rejoin 10 runs, some twice, one in ten frozen"""
    count, tokens = trial.size(500, 40), trial.size(80, 30)
    trial.at.llm.default = text("", tokens=[f"word{n} " for n in range(tokens)], delay=trial.size(10, 5) / 100)
    thaw = asyncio.Event()
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(alice[number % 2].stream(f"question {number}", f"s{number}"))
            for number in range(RUNS)
        ]
        runs = [stream.run_id for stream in opened]
        https = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=server.url,
                    headers={"Authorization": alice[0].http.headers["authorization"]},
                    timeout=300,
                    limits=httpx.Limits(max_connections=None),
                )
            )
            for server in (trial.owner, trial.other)
        ]
        still = [asyncio.create_task(frozen(https, trial, trial.random.choice(runs), thaw)) for _ in range(count // 10)]
        chosen = [trial.random.choice(runs) for _ in range(count - len(still))]
        twice = trial.random.sample(chosen, len(chosen) // 10)
        moving = await asyncio.gather(*(coming_and_going(https, trial, run) for run in (*chosen, *twice)))
        thaw.set()
        seen = [*moving, *await asyncio.gather(*still)]
        await asyncio.gather(*(stream.end() for stream in opened))
    reference = {stream.run_id: stream.events for stream in opened}
    for stream in seen:
        assert stream.done
        assert stream.events == reference[stream.run_id]
    trial.note("readers", len(seen))
    await trial.check(*opened, *seen[:20], turns=RUNS)
