"""Huge messages, long sessions and many of them, and one user who asks for everything at once (K02, D07)."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client
from tests.support.fake_llm import hang_after, text, tool_call
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
MEGABYTE = 1024 * 1024
MAX_RUNS = 4
TABLES = ("chat_sessions", "chat_messages", "runs", "run_events")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    env = {"MAX_RUNS_PER_USER": str(MAX_RUNS)}
    async with rack(postgres_url, valkey_url, f"sizes_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await shared.reset()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


# --- messages ---


async def sent(client: Client, path: str, size: int, *, declared: bool) -> tuple[int, str, int]:
    """POST a message of ``size`` bytes as fast as the server takes it; gives status, code and how much it took."""
    url = httpx.URL(str(client.http.base_url))
    reader, writer = await asyncio.open_connection(url.host, url.port)
    length = f"Content-Length: {size}" if declared else "Transfer-Encoding: chunked"
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {client.http.headers['authorization']}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n{length}\r\n\r\n".encode())
    answer = asyncio.create_task(answered(reader))
    took, piece = 0, b'{"message": "' + b"x" * 65_523
    while took < size and not answer.done():
        writer.write(piece if declared else b"%x\r\n%s\r\n" % (len(piece), piece))
        await asyncio.wait([answer, asyncio.ensure_future(writer.drain())], return_when=asyncio.FIRST_COMPLETED)
        took, piece = took + len(piece), b"x" * 65_536
    status, body = await answer
    writer.transport.abort()
    return status, json.loads(body)["code"], took


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of what comes."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    found = re.search(r"content-length: (\d+)", head)
    assert found is not None
    return int(head.split()[1]), await reader.readexactly(int(found[1]))


@pytest.mark.parametrize("path", ["/chat", "/chat/stream"])
async def test_k02_a_huge_message_is_refused_by_its_size(at: Rack, alice: Client, path: str):
    answer = await alice.post(path, {"message": "x" * 1_000_000, "session_id": "s"})
    assert (answer.status_code, answer.json()["code"]) == (413, "message_too_large")
    for size in (10 * MEGABYTE, 100 * MEGABYTE):
        for declared in (True, False):
            status, code, took = await sent(alice, path, size, declared=declared)
            assert (status, code) == (413, "too_large")
            assert took < size, "nobody waits for its end"
    assert (await alice.get("/sessions")).json()["sessions"] == []
    assert at.llm.requests == []
    await at.check(turns=0)


# --- sessions ---


async def test_k02_a_session_of_five_thousand_messages(at: Rack, alice: Client):
    await at.sql(
        "with s as (insert into chat_sessions (user_id, session_id, message_count, last_seq)"
        " select id, 's', 5000, 5000 from users returning id)"
        " insert into chat_messages (session_row_id, seq, type, content)"
        " select id, n, case n % 2 when 1 then 'human' else 'ai' end, 'message ' || n"
        " from s, generate_series(1, 5000) n"
    )
    page = (await alice.get("/sessions/s")).json()
    assert [message["content"] for message in page["messages"]] == [f"message {n}" for n in range(4501, 5001)]
    read, before = len(page["messages"]), page["next_before"]
    while before:
        page = (await alice.get("/sessions/s", params={"limit": 200, "before": before})).json()
        assert len(page["messages"]) <= 200
        read, before = read + len(page["messages"]), page["next_before"]
    assert read == 5_000
    at.llm.script(text("Fine."))
    assert (await alice.ask("And now?")).text == "Fine."
    assert len(at.llm.chats[-1].messages) < 20, "a prompt does not grow with its session"
    assert (await alice.get("/sessions")).json()["sessions"][0]["message_count"] == 5_002


async def test_k02_ten_thousand_sessions(at: Rack, alice: Client):
    await at.sql(
        "insert into chat_sessions (user_id, session_id, title, updated_at)"
        " select u.id, 'n' || n, 'title ' || n, timestamptz '2026-01-01' + n * interval '1 s'"
        " from users u, generate_series(1, 10000) n"
    )
    first = (await alice.get("/sessions")).json()
    assert [item["session_id"] for item in first["sessions"]] == [f"n{n}" for n in range(10_000, 9_950, -1)]
    too_many = await alice.get("/sessions", params={"limit": 10_000})
    assert too_many.status_code == 422
    assert (await alice.ask("new", "brand-new")).one("done")["status"] == "completed"
    assert (await alice.get("/sessions")).json()["sessions"][0]["session_id"] == "brand-new"


# --- one user who wants everything ---


async def test_k02_two_hundred_turns_of_one_user_leave_room_for_others(at: Rack, alice: Client):
    at.llm.default = hang_after(1)
    async with at.user() as bob, AsyncExitStack() as stack:
        opened = await asyncio.gather(
            *(stack.enter_async_context(alice.stream(session_id=f"s{number}")) for number in range(200))
        )
        running = [stream for stream in opened if stream.response.status_code == 200]
        refused = [stream.response for stream in opened if stream.response.status_code != 200]
        assert len(running) == MAX_RUNS
        assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(429, "too_many_runs")}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        await at.llm.wait_for_chats(MAX_RUNS)
        at.llm.script(text("For Bob."))
        assert (await bob.ask()).text == "For Bob."
        for stream in running:
            await alice.stop(stream.run_id)
            await stream.end()
    assert len((await alice.get("/sessions")).json()["sessions"]) == MAX_RUNS
    at.llm.default = None
    assert (await alice.ask(session_id="after")).one("done")["status"] == "completed"
    await at.check(turns=MAX_RUNS + 2)


# --- growth ---


async def stored_bytes(at: Rack, *tables: str) -> int:
    """The size of all rows, as text."""
    total = 0
    for table in tables:
        ((size,),) = await at.sql(f"select coalesce(sum(octet_length(t::text)), 0)::bigint from {table} t")
        total += size
    return total


async def test_d07_a_session_of_a_hundred_large_tool_results_grows_by_the_turn(at: Rack, alice: Client):
    paragraph = "The pump holds 24 bar and the valve holds 16 bar, as the table of the manual says. " * 12
    content = "\n\n".join(f"# Section {number}\n\n{paragraph}" for number in range(12))
    assert (
        await alice.http.post("/documents/upload", files={"file": ("pump.md", content.encode())})
    ).status_code == 200
    query = "pump " * 40_000  # 200 KB
    sizes, results = [await stored_bytes(at, *TABLES)], list[int]()
    for number in range(100):
        at.llm.script(
            tool_call("search_knowledge_base", {"query": query if number % 50 == 0 else "How much does it hold?"}),
            text(f"24 bar [1], {number}."),
        )
        seen = await alice.ask(f"question {number}")
        assert seen.one("done")["status"] == "completed"
        results.append(max(len(str(message["content"])) for message in at.llm.chats[-1].messages))
        if number in {49, 99}:
            sizes.append(await stored_bytes(at, *TABLES))
            sizes.append(await stored_bytes(at, "chat_sessions"))
    start, half, session_half, whole, session_whole = sizes
    assert max(results) > 5_000, "the tool results are large"
    assert whole - half < 1.2 * (half - start), "linear"
    assert (whole - start) / 100 < 100_000, "bounded"
    assert session_whole - session_half < 2_000, "what goes from turn to turn does not grow"
    assert all(len(request.payload) < 200_000 for request in at.llm.requests[-4:])
    page = await alice.get("/sessions/s", params={"limit": 50})
    assert len(page.json()["messages"]) == 50
    await at.sql("update runs set finished_at = finished_at - interval '25 h'")
    await at.server.restart()

    async def swept() -> bool:
        return await stored_bytes(at, "run_events") == 0

    await until(swept)
    assert (await alice.messages())[-1]["content"] == "24 bar [1], 99."
    await at.check(turns=100)
