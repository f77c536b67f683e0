"""What was deleted is nowhere, whatever ran or was away at that moment (G05)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from sqlalchemy import URL

from tests.acceptance.running import Running, running
from tests.support.chat_client import Client
from tests.support.fake_llm import text, tool_call
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
MARKER = "zebraquartz4711"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    async with running(postgres_url, valkey_url, f"deletion_{worker_id}") as made:
        yield made


async def tables_with(at: Running, marker: str = MARKER) -> set[str]:
    """Every ``table`` with a row that holds the marker anywhere."""
    tables = [row[0] for row in await at.sql("select tablename from pg_tables where schemaname = 'public'")]
    assert {"chat_sessions", "chat_messages", "runs", "run_events", "purge_outbox", "chunks"} <= set(tables)
    found = set[str]()
    for table in tables:
        ((count,),) = await at.sql(f"select count(*) from {table} t where strpos(t::text, :marker) > 0", marker=marker)
        if count:
            found.add(table)
    return found


async def cached_with(at: Running, marker: str = MARKER) -> list[bytes]:
    """Every key of Redis with the marker in its name or value."""
    redis, found = Redis.from_url(at.valkey_url), list[bytes]()
    for key in await redis.keys():
        kind = await redis.type(key)
        value = str(await redis.hgetall(key)) if kind == b"hash" else str(await redis.dump(key))
        if marker in value or marker.encode() in key:
            found.append(key)
    await redis.aclose()
    return found


def files_with(at: Running, marker: str = MARKER) -> list[Path]:
    """Every file below ``DATA_DIR`` with the marker in its name or content."""
    files = [path for path in at.data_dir.rglob("*") if path.is_file()]
    return [path for path in files if marker in path.name or marker.encode() in path.read_bytes()]


async def read_everything(at: Running, client: Client, session_id: str) -> None:
    """Until every copy there may be is made: a call that misses its short deadline, or meets a connection that an
    earlier test has cut, pauses the cache and leaves none."""

    async def copied() -> bool:
        at.services.cache._closed_again_at = None
        assert await client.messages(session_id)
        await client.get("/sessions")
        return {key.partition(b":")[0] for key in await cached_with(at)} >= {b"chat_messages", b"chat_sessions"}

    await until(copied)


async def a_marked_turn(at: Running, client: Client, session_id: str) -> None:
    """A turn with the marker in question, title, tool call, trace and answer."""
    document = b"The pump holds 24 bar."
    assert (await client.http.post("/documents/upload", files={"file": ("pump.txt", document)})).status_code == 200
    at.llm.script(
        tool_call("search_knowledge_base", {"query": f"pump {MARKER}"}), text(f"It holds 24 bar [1], {MARKER}.")
    )
    seen = await client.ask(f"{MARKER} pump?", session_id, client_message_id=f"key-{MARKER}")
    assert MARKER in str(seen.one("trace"))
    assert seen.one("citations")["citations"]
    await read_everything(at, client, session_id)


async def test_g05_a_deleted_session_is_nowhere(at: Running, alice: Client):
    await alice.ask("hello", "other")
    await a_marked_turn(at, alice, "s")
    renamed = await alice.http.patch("/sessions/s", json={"title": f"About {MARKER}"})
    assert renamed.status_code == 200
    await read_everything(at, alice, "s")
    assert {"chat_sessions", "chat_messages", "runs", "run_events"} <= await tables_with(at)
    assert await cached_with(at)

    assert (await alice.http.delete("/sessions/s")).json() == {
        "session_id": "s",
        "message": "The conversation was deleted.",
    }
    again = await alice.http.delete("/sessions/s")
    assert (again.status_code, again.json()["code"]) == (404, "not_found")

    assert await tables_with(at) == set()
    assert await cached_with(at) == []
    assert files_with(at) == []
    assert await at.sql("select * from purge_outbox") == []
    assert await alice.messages("s") == []
    assert [item["session_id"] for item in (await alice.get("/sessions")).json()["sessions"]] == ["other"]
    assert len((await alice.get("/documents")).json()["documents"]) == 1
    assert len(await alice.messages("other")) == 2
    await at.check(turns=1)


async def test_g05_a_quotation_of_a_document_goes_and_the_document_stays(at: Running, alice: Client):
    marker = "quartzzebra0815"
    content = f"The pump {marker} holds 24 bar."
    await alice.http.post("/documents/upload", files={"file": ("pump.txt", content.encode())})
    seen = await alice.ask("How much does the pump hold?")
    assert marker in seen.text
    assert (await alice.http.delete("/sessions/s")).status_code == 200
    assert await tables_with(at, marker) == {"chunks"}
    assert await cached_with(at, marker) == []
    (original,) = [path for path in files_with(at, marker) if "index" not in path.relative_to(at.data_dir).parts]
    assert original.relative_to(at.data_dir).parts[0] == "documents"
    assert (await alice.http.delete("/documents/pump.txt")).status_code == 200
    assert await tables_with(at, marker) == set()
    assert not original.exists()


async def test_g05_a_live_run_is_stopped_first_and_writes_nothing_after(at: Running, alice: Client):
    at.llm.script(text(f"{MARKER} " * 400, delay=0.02))
    async with alice.stream(f"{MARKER}?") as stream:
        await stream.until(lambda seen: seen.text.count(MARKER) > 5)
        run_id = stream.run_id
        assert (await alice.http.delete("/sessions/s")).status_code == 200
        await stream.end()
    assert stream.one("done")["status"] == "stopped", "it was stopped, not found lost later"
    await asyncio.wait_for(at.llm.chats[-1].ended.wait(), 60)
    assert at.llm.chats[-1].closed_by_client
    for path in (f"/chat/runs/{run_id}", f"/chat/runs/{run_id}/stream"):
        assert (await alice.get(path)).status_code == 404
    assert (await alice.http.delete("/sessions/s")).status_code == 404
    assert await tables_with(at) == set()
    assert await cached_with(at) == []
    assert files_with(at) == []
    await alice.ask("new", "s")
    assert (await alice.messages("s"))[0]["content"] == "new"
    await at.check(turns=1)


async def test_g05_two_deletions_at_once(at: Running, alice: Client):
    await a_marked_turn(at, alice, "s")
    answers = await asyncio.gather(*(alice.http.delete("/sessions/s") for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 404, 404, 404]
    assert await tables_with(at) == set()


@pytest.mark.parametrize("fault", ["refuse", "blackhole"])
async def test_g05_with_redis_away_the_copies_go_when_it_is_back(at: Running, alice: Client, fault: str):
    await a_marked_turn(at, alice, "s")
    getattr(at.redis, fault)()
    assert (await alice.http.delete("/sessions/s")).status_code == 200
    assert (await alice.http.delete("/sessions/s")).status_code == 404
    assert await alice.messages("s") == []
    assert (await alice.get("/sessions")).json()["sessions"] == []
    assert await tables_with(at) == set()
    assert await cached_with(at), "Redis could not be told"
    assert len(await at.sql("select * from purge_outbox")) == 1

    await at.services.chat.storage.sweep_deleted()
    assert len(await at.sql("select * from purge_outbox")) == 1
    await at.redis.restore()

    async def told() -> bool:
        at.services.cache._closed_again_at = None  # the pause after a failure is over
        await at.services.chat.storage.sweep_deleted()
        return await at.sql("select * from purge_outbox") == []

    await until(told)  # on a busy machine Redis may miss its short deadline once more
    assert await cached_with(at) == []
