"""Redis stopped, silent, slow, full, read-only, emptied: a real server goes on with all it does (C04)."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from sqlalchemy import URL

from backend.infra.cache import OPEN_SECONDS
from backend.infra.embedded.valkey import embedded_valkey
from tests.acceptance.metrics import metric
from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import PASSWORD, Client
from tests.support.fake_llm import hang_after, text

pytestmark = pytest.mark.asyncio(loop_scope="module")
FAULTS = ["stopped", "silent", "slow", "full", "read_only", "emptied"]
AWAY = {"stopped", "silent", "slow"}
"""What Redis cannot be reached in; in the others it answers, and refuses or has nothing."""
AT_ONCE = 3
"""Calls that can be under way when Redis goes: of the request, of the turn, and the hint to other workers."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, worker_id: str) -> AsyncIterator[Rack]:
    """With a Redis of its own, as it is filled and made a replica here."""
    with TemporaryDirectory(prefix="citewire-redis-") as directory, embedded_valkey(Path(directory)) as url:
        env = {"CHAT_RATE_PER_MINUTE": "1000"}  # a rate that is counted in Redis
        async with rack(postgres_url, url, f"six_{worker_id}", env) as made:
            yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await heal(shared)
    await shared.reset()
    await shared.server.wait_ready()
    yield shared
    await heal(shared)


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


async def break_redis(at: Rack, fault: str) -> None:
    """Bring Redis into that state."""
    async with Redis.from_url(at.valkey_url) as redis:
        if fault == "stopped":
            at.redis.refuse()
        elif fault == "silent":
            at.redis.blackhole()
        elif fault == "slow":
            at.redis.delay = 1.0
        elif fault == "full":
            await redis.config_set("maxmemory-policy", "noeviction")
            await redis.config_set("maxmemory", "1")
        elif fault == "read_only":
            await redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        else:
            await redis.flushall()


async def heal(at: Rack) -> None:
    await at.redis.restore()
    async with Redis.from_url(at.valkey_url) as redis:
        await redis.execute_command("REPLICAOF", "NO", "ONE")
        await redis.config_set("maxmemory", "0")


@pytest.mark.parametrize("fault", FAULTS)
async def test_c04_whatever_redis_does_every_route_goes_on(at: Rack, alice: Client, fault: str):
    await alice.ask("before", "old", key="k")
    await alice.messages("old")
    at.llm.script(text("one two three ", delay=0.3))
    async with alice.stream("during", "live") as live:
        await live.until_text("one")
        await break_redis(at, fault)
        began, failures = time.monotonic(), await metric(at.server.url, "cache_failures_total")
        await live.end()
    assert (live.text, live.done) == ("one two three ", True)

    assert (await alice.post("/auth/login", {"username": alice.name, "password": PASSWORD})).status_code == 200
    async with at.user() as bob:
        assert (await bob.ask("hello")).one("done")["status"] == "completed"
        assert await alice.messages("none") == []
    form = {"files": {"file": ("pump.txt", b"The pump holds 24 bar.")}}
    assert (await alice.http.post("/documents/upload", **form)).status_code == 200
    seen = await alice.ask("How much does the pump hold?", "new")
    assert seen.one("citations")["citations"]
    assert (await alice.post("/chat", {"message": "And?", "session_id": "new"})).json()["status"] == "completed"
    assert (await alice.ask("before", "old", key="k")).text
    assert [item["content"] for item in await alice.messages("old")][:1] == ["before"]
    assert len(await alice.messages("new")) == 4
    assert (await alice.replay(seen.run_id)).text == seen.text
    assert (await alice.http.patch("/sessions/old", json={"title": "Old"})).json()["title"] == "Old"
    at.llm.script(hang_after(1))
    async with alice.stream("stop me", "stopped") as stream:
        await stream.until_text("one")
        await alice.stop(stream.run_id)
        await stream.end()
    assert stream.one("done")["status"] == "stopped"
    assert (await alice.http.delete("/sessions/old")).status_code == 200
    listed = [item["session_id"] for item in (await alice.get("/sessions")).json()["sessions"]]
    assert listed == ["stopped", "new", "live"]
    ready = await alice.get("/health/ready")
    assert ready.status_code == 200
    assert ready.json()["status"] == ("degraded" if fault in AWAY else "ok")
    if fault in AWAY:
        assert ready.json()["dependencies"]["redis"] == "degraded"
        tried = await metric(at.server.url, "cache_failures_total") - failures
        pauses = (time.monotonic() - began) / OPEN_SECONDS
        assert 1 <= tried <= AT_ONCE + pauses, "one call a pause, and those that were under way when it began"
    assert (await alice.get("/health/live")).status_code == 200

    await heal(at)
    await at.server.wait_ready()
    assert await alice.messages("old") == []
    assert len(await alice.messages("new")) == 4
    await at.check(live, seen, stream)


async def test_j02_answers_of_redis_that_nobody_waits_for_reach_nobody_else(at: Rack):
    """Twenty users read their own session and list while Redis answers about when the server gives up."""
    users, moments = 20, random.Random(9)

    async def one(number: int) -> None:
        async with at.user() as client:
            await client.ask(f"marker{number}x", f"session{number}x")
            for _ in range(20):
                at.redis.delay = moments.choice([0.0, 0.0, 0.1, 0.124, 0.126])
                messages, sessions = await asyncio.gather(
                    client.get(f"/sessions/session{number}x"), client.get("/sessions")
                )
                assert messages.json()["messages"][0]["content"] == f"marker{number}x"
                assert [item["session_id"] for item in sessions.json()["sessions"]] == [f"session{number}x"]
                me = await client.get("/auth/me")
                assert me.json()["username"] == client.name

    await asyncio.gather(*(one(number) for number in range(users)))
    await at.redis.restore()
    await at.check(turns=users)
