"""The server killed, and ended in order, while it answers; and started again on the same data."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client
from tests.support.fake_llm import hang_after, tool_call
from tests.support.fake_llm import text as says
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORDS = "one two three four five six seven eight nine ten "
HALF = "one two three four five "


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["true", "false"], ids=["memory", "table"])
async def shared(
    request: pytest.FixtureRequest, postgres_url: URL, valkey_url: str, worker_id: str
) -> AsyncIterator[Rack]:
    env = {"LEASE_SECONDS": "2", "SHUTDOWN_GRACE_SECONDS": "5", "EVENT_MEMORY_LOG": request.param}
    async with rack(postgres_url, valkey_url, f"restart_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    if shared.server.returncode is not None:
        await shared.server.start()
    await shared.reset()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


async def flushed(url: URL, wanted: str) -> None:
    """Wait until the events up to ``wanted`` are in the table: what a kill may cost is over."""
    engine = create_async_engine(url, poolclass=NullPool)
    query = text("select count(*) from run_events where events like '%' || cast(:wanted as text) || '%'")

    async def stored() -> bool:
        async with engine.connect() as connection:
            return bool((await connection.execute(query, {"wanted": wanted})).scalar_one())

    await until(stored)
    await engine.dispose()


async def test_b03_killed_at_the_fifth_token(at: Rack, alice: Client):
    at.llm.script(hang_after(5), says(WORDS))
    async with alice.stream(client_message_id="k") as stream:
        await stream.until_text("five")
        await flushed(at.database, "five")
        await at.server.kill9()
        with pytest.raises(httpx.TransportError):
            await stream.end()
    assert not stream.done
    await at.server.start()
    question, answer = await alice.messages()
    assert (question["content"], question["status"]) == ("How long?", "completed")
    assert answer["status"] in {"pending", "interrupted"}
    assert (await alice.ended(stream.run_id))["status"] == "interrupted"
    answer = (await alice.messages())[-1]
    assert (answer["status"], answer["content"]) == ("interrupted", HALF)
    back = await alice.replay(stream.run_id, stream.last_seq)
    assert back.types == ["trace", "citations", "error", "done"]
    assert (back.one("error")["code"], back.one("error")["retryable"]) == ("server_shutdown", True)
    assert back.events[0]["seq"] == stream.last_seq + 1000
    again = await alice.ask(client_message_id="k")
    assert again.run_id == stream.run_id
    assert again.text == HALF
    following = await alice.ask("go on")
    assert following.text == WORDS
    assert [item["role"] for item in at.llm.chats[-1].messages] == ["system", "user", "assistant", "user"]
    assert len(at.llm.chats) == 2
    await at.check(stream, again, following, turns=2)


async def test_b03_a_new_turn_is_accepted_as_soon_as_the_lease_is_over(at: Rack, alice: Client):
    at.llm.script(hang_after(1), says(WORDS))
    async with alice.stream() as stream:
        await stream.until_text("one")
        await at.server.kill9()
    await at.server.start()

    async def accepted() -> bool:
        answer = await alice.post("/chat", {"message": "next", "session_id": "s"})
        assert answer.status_code == 200 or answer.json()["code"] == "run_active"
        return answer.status_code == 200

    await until(accepted)
    assert (await alice.run(stream.run_id))["status"] == "interrupted"
    await at.check(turns=2)


async def test_killed_right_after_done_the_turn_is_there(at: Rack, alice: Client):
    at.llm.script(tool_call("search_knowledge_base", {"query": "x"}), says(WORDS))
    async with alice.stream() as stream:
        await stream.until(lambda got: got.done)
        await at.server.kill9()
    await at.server.start()
    question, answer = await alice.messages()
    assert (question["content"], answer["content"], answer["status"]) == ("How long?", WORDS, "completed")
    assert answer["rag_trace"] == stream.one("trace")["rag_trace"]
    assert answer["rag_trace"]["tool_used"] is True
    assert answer["usage"] == stream.one("done")["usage"]
    replayed = await alice.replay(stream.run_id)
    assert replayed.events == stream.events
    assert (await alice.replay(stream.run_id, stream.last_seq)).events == []
    assert (await alice.get("/sessions")).json()["sessions"][0]["message_count"] == 2
    await at.check(stream, replayed, turns=1)


async def test_e10_the_turn_after_a_kill_within_a_tool_call_is_well_formed(at: Rack, alice: Client):
    at.llm.script(tool_call("search_knowledge_base", {"query": "x"}), hang_after(0), says(WORDS))
    async with alice.stream() as stream:
        await at.llm.wait_for_chats(2)
        await at.server.kill9()
    await at.server.start()
    await alice.ended(stream.run_id)
    assert (await alice.ask("again")).text == WORDS
    assert [item["role"] for item in at.llm.chats[-1].messages] == ["system", "user"]
    await at.check(stream, turns=2)


async def test_a08_a09_sigterm_ends_every_open_stream_with_its_text(at: Rack, alice: Client):
    count = 20
    at.llm.default = hang_after(5)
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(alice.stream(session_id=f"s{n}")) for n in range(count)]
        await asyncio.gather(*(stream.until_text("five") for stream in streams))
        await at.server.sigterm(wait=False)
        await asyncio.gather(*(stream.end() for stream in streams))
    assert await at.server.wait(30) == 0
    for stream in streams:
        assert stream.done
        assert stream.types[-4:] == ["trace", "citations", "error", "done"]
        assert (stream.one("error")["code"], stream.one("error")["retryable"]) == ("server_shutdown", True)
        assert stream.one("done")["status"] == "interrupted"
    assert all(request.closed_by_client for request in at.llm.chats)
    assert '"stopped"' in at.server.logs()
    at.llm.default = None
    await at.server.start()
    for number in range(count):
        question, answer = await alice.messages(f"s{number}")
        assert (question["status"], answer["status"], answer["content"]) == ("completed", "interrupted", HALF)
    assert (await alice.ask("go on", "s0")).one("done")["status"] == "completed"
    await at.check(*streams, turns=count + 1)


async def test_a09_sigterm_while_tokens_come_keeps_what_was_sent(at: Rack, alice: Client):
    at.llm.script(says(WORDS * 5, delay=0.2))
    async with alice.stream() as stream:
        await stream.until_text("five")
        await at.server.sigterm(wait=False)
        await stream.end()
    assert await at.server.wait(30) == 0
    assert stream.done
    await at.server.start()
    answer = (await alice.messages())[-1]
    assert answer["status"] == "interrupted"
    assert answer["content"] == stream.text
    assert answer["content"].startswith(HALF)
    at.llm.script(says("And on."))
    assert (await alice.ask("go on")).text == "And on."
    shown = [message["content"] for message in at.llm.chats[-1].messages[1:]]
    assert shown == ["How long?", stream.text, "go on"]
    await at.check(stream, turns=2)


async def test_a_waiting_chat_request_gets_the_interrupted_answer_at_sigterm(at: Rack, alice: Client):
    at.llm.script(hang_after(5))
    asking = asyncio.create_task(alice.post("/chat", {"message": "hi", "session_id": "s"}))
    await at.llm.wait_for_chats(1)
    await flushed(at.database, "five")
    await at.server.sigterm(wait=False)
    answer = (await asking).json()
    assert await at.server.wait(30) == 0
    assert (answer["status"], answer["response"]) == ("interrupted", HALF)
    assert answer["error"]["code"] == "server_shutdown"
    await at.server.start()
    await at.check(turns=1)
