"""Redis is away, silent or late: every route works, and no prompt misses a turn (C03, C04)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from sqlalchemy import URL

from backend.infra.embedded.valkey import embedded_valkey
from tests.acceptance.running import Running, running
from tests.chat.test_session_cache import Pause
from tests.support.chat_client import PASSWORD, Client
from tests.support.fake_llm import text

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    async with running(postgres_url, valkey_url, f"redis_{worker_id}") as made:
        yield made


def prompt(at: Running) -> list[str]:
    """The conversation that the model was last shown."""
    return [message["content"] for message in at.llm.chats[-1].messages if message["role"] != "system"]


async def test_c03_a_late_copy_hides_no_turn_from_the_next_prompt(at: Running, alice: Client):
    at.llm.script(*(text(f"answer {n}") for n in range(1, 5)))
    await alice.ask("question 1")
    await alice.messages()
    copies = at.services.chat.storage._cache
    slow = Pause(copies, "write_through", skip=1)  # the claim passes, the end of the turn is held
    first = asyncio.ensure_future(alice.ask("question 2"))
    await slow.reached.wait()
    slow.let_others_pass()
    await alice.ask("question 3")
    assert prompt(at) == ["question 1", "answer 1", "question 2", "answer 2", "question 3"]
    slow.release()
    await first
    await alice.ask("question 4")
    whole = [f"{kind} {n}" for n in range(1, 5) for kind in ("question", "answer")]
    assert prompt(at) == whole[:-1]
    for _ in range(2):
        assert [item["content"] for item in await alice.messages()] == whole
    await at.check(turns=4)


async def test_c03_what_is_in_redis_is_never_part_of_a_prompt(at: Running, alice: Client):
    at.llm.script(*(text(f"answer {n}") for n in range(1, 4)))
    await alice.ask("question 1")
    await alice.ask("question 2")
    await alice.messages()
    redis = at.services.cache.redis
    (key,) = await redis.keys("chat_messages:*")
    fields = await redis.hgetall(key)
    for name, value in fields.items():
        if name.isdigit():
            await redis.hset(key, name, value.replace(b"answer", b"forged").replace(b"question", b"forged"))
    await alice.ask("question 3")
    assert prompt(at) == ["question 1", "answer 1", "question 2", "answer 2", "question 3"]


@pytest.mark.parametrize("fault", ["refuse", "blackhole"])
async def test_c04_everything_works_without_redis(at: Running, alice: Client, fault: str):
    await alice.ask("before", "old")
    await alice.messages("old")
    getattr(at.redis, fault)()
    before = at.redis.accepted

    login = await alice.post("/auth/login", {"username": alice.name, "password": PASSWORD})
    assert login.status_code == 200
    async with at.user() as bob:
        assert (await bob.ask("hello")).one("done")["status"] == "completed"
    form = {"files": {"file": ("pump.txt", b"The pump holds 24 bar.")}}
    assert (await alice.http.post("/documents/upload", **form)).status_code == 200
    seen = await alice.ask("How much does the pump hold?", "new")
    assert seen.one("done")["status"] == "completed"
    assert seen.one("citations")["citations"]
    assert (await alice.post("/chat", {"message": "And?", "session_id": "new"})).json()["status"] == "completed"
    assert [item["content"] for item in await alice.messages("old")][:1] == ["before"]
    assert len(await alice.messages("new")) == 4
    assert (await alice.replay(seen.run_id)).text == seen.text
    assert [item["session_id"] for item in (await alice.get("/sessions")).json()["sessions"]] == ["new", "old"]
    assert (await alice.http.patch("/sessions/old", json={"title": "Old"})).json()["title"] == "Old"
    assert (await alice.http.delete("/sessions/old")).status_code == 200
    assert [item["title"] for item in (await alice.get("/sessions")).json()["sessions"]] == [
        "How much does the pump hold?"
    ]
    ready = await alice.get("/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    assert ready.json()["dependencies"]["redis"] == "degraded"
    assert (await alice.get("/health/live")).status_code == 200
    assert at.redis.accepted - before <= 20, "not every call tries again"

    await at.redis.restore()
    at.services.cache._closed_again_at = None  # the pause after a failure is over
    assert (await alice.get("/health/ready")).json()["status"] == "ok"
    assert await alice.messages("old") == []
    assert len(await alice.messages("new")) == 4
    await at.services.chat.storage.sweep_deleted()
    await at.check()


async def refuse_writes(url: str, fault: str) -> None:
    """Make the server full, or a replica of a master that is not there."""
    async with Redis.from_url(url) as redis:
        if fault == "full":
            await redis.config_set("maxmemory-policy", "noeviction")
            await redis.config_set("maxmemory", "1")
        else:
            await redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(ResponseError):
            await redis.set("canary", "x" * 1_000)


@pytest.mark.parametrize("fault", ["full", "read only"])
async def test_c04_a_redis_that_takes_no_writes_hides_nothing(
    postgres_url: URL, worker_id: str, data_dir: Path, fault: str
):
    with embedded_valkey(data_dir) as url:
        async with running(postgres_url, url, f"{fault[:4]}_{worker_id}") as at, at.user() as alice:
            await alice.ask("first question")
            assert len(await alice.messages()) == 2
            assert len((await alice.get("/sessions")).json()["sessions"]) == 1
            await refuse_writes(url, fault)
            for number in (2, 3):
                assert (await alice.ask(f"question {number}")).one("done")["status"] == "completed"
                assert len(await alice.messages()) == 2 * number
            assert (await alice.http.patch("/sessions/s", json={"title": "New"})).status_code == 200
            assert [item["title"] for item in (await alice.get("/sessions")).json()["sessions"]] == ["New"]
            assert (await alice.get("/health/ready")).status_code == 200
            assert (await alice.http.delete("/sessions/s")).status_code == 200
            assert await alice.messages() == []
            assert (await alice.get("/sessions")).json()["sessions"] == []
