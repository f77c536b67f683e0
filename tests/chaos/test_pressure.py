"""More streams than connections, and one user who takes all there is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack
from tests.acceptance.test_small_pool import connections
from tests.chaos.rig import NOBODY_DIES, WORDS, Trial, pair
from tests.support.chat_client import Client
from tests.support.fake_llm import text

pytestmark = pytest.mark.asyncio(loop_scope="session")
POOL = 2
RUNS = 10
ENV = {**NOBODY_DIES, "DATABASE_POOL_SIZE": f"{POOL}", "MAX_RUNS_PER_USER": f"{RUNS}", "CHAT_RATE_PER_MINUTE": "40"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    async with pair(postgres_url, valkey_url, f"chaos_pool_{worker_id}", ENV) as made:
        yield made


async def users(trial: Trial, stack: AsyncExitStack, count: int) -> list[tuple[Client, Client]]:
    return [await stack.enter_async_context(trial.user()) for _ in range(count)]


async def test_small_pool(trial: Trial):
    """200 streams on two workers with a pool of 2 connections each"""
    trial.at.llm.default = text(WORDS, delay=0.3)
    count = trial.size(20, 3)
    async with AsyncExitStack() as stack:
        everybody = await users(trial, stack, count)
        streaming = [
            asyncio.create_task(both[number % 2].ask(session_id=f"s{number}"))
            for both in everybody
            for number in range(RUNS)
        ]
        meanwhile = most = 0
        while not all(task.done() for task in streaming):
            for client in everybody[0]:
                assert (await client.get("/sessions")).status_code == 200
                assert (await client.get("/health/ready")).status_code == 200
            most = max(most, await connections(trial.at.database))
            meanwhile += 1
            await asyncio.sleep(0.2)
        seen = await asyncio.gather(*streaming)
        assert most <= 2 * POOL
        assert meanwhile >= 1
        assert {(stream.text, stream.one("done")["status"]) for stream in seen} == {(WORDS, "completed")}
        trial.note("connections", most)
        await trial.check(*seen, turns=count * RUNS)


async def refused_or_read(client: Client, number: int) -> httpx.Response:
    return await client.post("/chat", {"message": "more", "session_id": f"s{number}"})


async def test_abusive_user(trial: Trial):
    """One user asks 100 things at once beside 20 others"""
    trial.at.llm.default = text(WORDS, delay=0.1)
    count, flood = trial.size(20, 4), trial.size(100, 60)
    async with AsyncExitStack() as stack:
        (abuser, abuser_there), *others = await users(trial, stack, count + 1)

        async def converse(place: int, both: tuple[Client, Client]) -> int:
            for turn in range(3):
                seen = await both[(place + turn) % 2].ask(f"question {turn}")
                assert (seen.text, seen.one("done")["status"]) == (WORDS, "completed")
            return 3

        flooding = asyncio.gather(
            *(refused_or_read(abuser if number % 2 else abuser_there, number) for number in range(flood))
        )
        asked = sum(await asyncio.gather(*(converse(place, both) for place, both in enumerate(others))))
        answers = await flooding
        refused = [answer for answer in answers if answer.status_code != 200]
        assert {answer.status_code for answer in refused} == {429}
        assert {answer.json()["code"] for answer in refused} <= {"too_many_runs", "rate_limited"}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        trial.note("refused", len(refused))
        await trial.check(turns=asked + flood - len(refused))
