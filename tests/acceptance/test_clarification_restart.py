"""A question back and a server that ends: between question and answer, and while the answer is being written."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.acceptance.asking import PROMPT, QUESTION, clarify, good, hitl_of, pending, upload
from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client
from tests.support.fake_llm import hang_after, wait
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["true", "false"], ids=["memory", "table"])
async def shared(
    request: pytest.FixtureRequest, postgres_url: URL, valkey_url: str, worker_id: str
) -> AsyncIterator[Rack]:
    env = {"LEASE_SECONDS": "2", "SHUTDOWN_GRACE_SECONDS": "5", "EVENT_MEMORY_LOG": request.param}
    async with rack(postgres_url, valkey_url, f"asked_{worker_id}", env) as made:
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
        await upload(client)
        yield client


async def sql(at: Rack, statement: str) -> list[tuple[object, ...]]:
    engine = create_async_engine(at.database, poolclass=NullPool)
    async with engine.begin() as connection:
        result = await connection.execute(text(statement))
        rows = [tuple(row) for row in result.all()] if result.returns_rows else []
    await engine.dispose()
    return rows


async def test_without_its_events_the_stream_of_a_question_is_rebuilt(at: Rack, alice: Client):
    at.llm.decide("grade", clarify())
    seen = await alice.ask(QUESTION)
    await at.server.restart()
    await sql(at, "delete from run_events")
    back = await alice.replay(seen.run_id)
    assert back.types == ["gap", "trace", "citations", "hitl_request", "done"]
    assert back.one("gap")["content"] == (await alice.messages())[-1]["content"]
    assert back.events[1:] == seen.events[-4:]
    answer = await alice.post("/chat", {"message": "Pump B", "session_id": "s", "hitl_id": hitl_of(back)["id"]})
    assert answer.json()["rag_trace"]["hitl_answer"] == "Pump B"
    assert (await alice.replay(seen.run_id)).events == back.events, "answered or not: what the run asked stays its own"


@pytest.mark.parametrize("step", ["search", "answer"])
@pytest.mark.parametrize("killed", [True, False], ids=["killed", "drained"])
async def test_b13_a_server_that_ends_while_it_answers_gives_the_question_back(
    at: Rack, alice: Client, killed: bool, step: str
):
    at.llm.decide("grade", clarify())
    hitl = hitl_of(await alice.ask(QUESTION))
    stored = await sql(at, "select metadata from chat_sessions")
    if step == "search":
        at.llm.decide("grade", wait(60, good()))
    else:
        at.llm.script(hang_after(3))
    async with alice.stream("2", hitl_id=hitl["id"]) as stream:
        if step == "search":
            await until(lambda: _grades(at, 2))
        else:
            await stream.until_type("content")
        assert await pending(alice) is None
        if killed:
            await at.server.kill9()
            with pytest.raises(httpx.TransportError):
                await stream.end()
        else:
            await at.server.sigterm()
            await stream.end()
            assert stream.one("done")["status"] == "interrupted"
    await at.server.start()
    assert (await alice.ended(stream.run_id))["status"] == "interrupted"
    assert await pending(alice) == hitl
    assert await sql(at, "select metadata from chat_sessions") == stored
    messages = await alice.messages()
    assert [messages[2]["content"], messages[3]["status"]] == ["2", "interrupted"]
    assert messages[1]["content"].startswith(PROMPT)
    seen = await alice.ask("2", hitl_id=hitl["id"])
    assert seen.one("done")["status"] == "completed"
    assert seen.one("trace")["rag_trace"]["query"] == f"{QUESTION} Pump B"
    assert await pending(alice) is None
    await at.check(seen, turns=3)


async def _grades(at: Rack, count: int) -> bool:
    return len(at.llm.decisions("grade")) == count


async def test_an_answer_is_there_when_the_server_is_killed_right_after_it(at: Rack, alice: Client):
    at.llm.decide("grade", clarify())
    await alice.ask(QUESTION)
    async with alice.stream("Pump B") as stream:
        await stream.until(lambda got: got.done)
        await at.server.kill9()
    await at.server.start()
    assert await pending(alice) is None
    assert (await alice.messages())[-1]["content"] == stream.text
    refused = await alice.post("/chat", {"message": "x", "session_id": "s", "hitl_id": "h"})
    assert refused.json()["code"] == "stale_hitl"
    await at.check(stream, turns=2)
