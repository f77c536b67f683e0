"""Metrics of a server with several workers: one answer for all, whichever is asked."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.acceptance.test_operations import Scrape, scrape
from tests.support.chat_client import signed_in
from tests.support.fake_llm import hang_after, text
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    env = {"WORKERS": "2", "LEASE_SECONDS": "3", "CHAT_RATE_PER_MINUTE": "0"}
    async with rack(postgres_url, valkey_url, f"workers_{worker_id}", env) as made:
        yield made


async def scrapes(at: Rack, count: int = 8) -> list[Scrape]:
    """Answers on connections of their own, so of different workers."""

    async def one() -> Scrape:
        async with httpx.AsyncClient(base_url=at.server.url, timeout=60) as client:
            return await scrape(client)

    return await asyncio.gather(*(one() for _ in range(count)))


def workers_of(pid: int) -> list[int]:
    """Child processes that keep metrics."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def test_any_worker_answers_for_all_and_a_killed_one_leaves_no_ghost(at: Rack):
    async with at.user() as alice:
        asked = [alice.ask(session_id=f"s{number}") for number in range(12)]
        await asyncio.gather(*asked)
        for seen in await scrapes(at):
            assert seen("turns_total", end="completed") == 12
            assert seen("first_token_seconds_count") == 12
            assert seen("active_runs") == 0

        at.llm.script(*[hang_after(1)] * 8)
        streams = [alice.stream(session_id=f"hanging{number}") for number in range(8)]
        opened = [await stream.__aenter__() for stream in streams]
        for stream in opened:
            await stream.until_type("content")
        assert {seen("active_runs") for seen in await scrapes(at)} == {8}
        old = workers_of(at.server.pid)
        assert len(old) == 2
        os.kill(old[0], signal.SIGKILL)
        for context in streams:
            await context.__aexit__(None, None, None)
    token = alice.http.headers["authorization"].removeprefix("Bearer ")
    async with signed_in(at.server.url, token=token) as again:  # on connections that no killed worker had
        for stream in opened:
            await again.stop(stream.run_id)
            assert (await again.ended(stream.run_id))["status"] in {"stopped", "interrupted"}

    async def replaced() -> bool:
        now = workers_of(at.server.pid)
        return len(now) == 2 and old[0] not in now

    await until(replaced, 60)
    for seen in await scrapes(at):
        assert seen("turns_total", end="completed") == 12
        assert seen("turns_total", end="stopped") + seen("turns_total", end="interrupted") == 8
        assert (seen("active_runs"), seen("stream_subscribers")) == (0, 0)


async def test_nothing_of_an_earlier_start_is_counted_and_nothing_is_left_behind(at: Rack):
    at.llm.script(text("one"))
    await at.server.restart()
    assert {seen("turns_total", end="completed") for seen in await scrapes(at)} == {0}
