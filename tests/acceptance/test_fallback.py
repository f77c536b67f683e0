"""The provider is down and quotations may stand in: turns are answered and flagged, until it is back."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import close_after, reset_after, status, text, tool_call
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
FACT = "The warranty of the pump lasts seventeen months."
QUESTION = "How long does the warranty of the pump last?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    async with rack(postgres_url, valkey_url, f"fallback_{worker_id}", {"LLM_FALLBACK": "extractive"}) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    await at.reset()
    async with at.user() as client:
        answer = await client.http.post("/documents/upload", files={"file": ("pump.txt", FACT.encode())})
        assert answer.status_code == 200, answer.text
        yield client


async def quoted(client: Client, seen: Stream) -> None:
    """The turn was answered from the documents, and says so everywhere."""
    done = seen.one("done")
    assert (done["status"], done["finish_reason"], done["flags"]) == ("completed", "stop", ["degraded"])
    assert "seventeen months" in seen.text
    assert seen.one("citations")["citations"][0]["filename"] == "pump.txt"
    stored = (await client.messages())[-1]
    assert (stored["content"], stored["status"], stored["flags"]) == (seen.text, "completed", ["degraded"])
    assert stored["rag_trace"] == seen.one("trace")["rag_trace"]
    assert stored["rag_trace"]["retrieved_chunks"]


async def test_quotations_stand_in_until_the_provider_is_back(at: Rack, alice: Client):
    at.llm.default = reset_after(0)
    seen = [await alice.ask(QUESTION) for _ in range(3)]
    for stream in seen:
        await quoted(alice, stream)
    body = await alice.post("/chat", {"message": QUESTION, "session_id": "other"})
    assert (body.json()["status"], body.json()["flags"]) == ("completed", ["degraded"])
    assert "seventeen months" in body.json()["response"]
    at.llm.default = text("Back.")

    async def back() -> bool:
        seen.append(await alice.ask(QUESTION))
        return seen[-1].text == "Back."

    await until(back, 60)
    assert seen[-1].one("done")["flags"] == []
    await at.check(*seen, turns=len(seen) + 1)


async def test_what_was_looked_up_is_quoted_when_the_provider_goes_away_after_it(at: Rack, alice: Client):
    at.llm.script(tool_call("search_knowledge_base", {"query": QUESTION}))
    at.llm.default = status(429, None, {"retry-after": "86400"})
    seen = await alice.ask(QUESTION)
    await quoted(alice, seen)
    await at.check(seen, turns=1)


async def test_half_an_answer_is_not_finished_by_another_model(at: Rack, alice: Client):
    at.llm.script(close_after(5))
    seen = await alice.ask(QUESTION)
    assert seen.text == "one two three four five "
    assert seen.one("error")["code"] == "provider_protocol"
    assert (seen.one("done")["status"], seen.one("done")["flags"]) == ("failed", [])
    await at.check(seen, turns=1)


async def test_a_refused_key_is_told(at: Rack, alice: Client):
    at.llm.default = status(401)
    seen = await alice.ask(QUESTION)
    assert (seen.one("error")["code"], seen.text) == ("provider_rejected", "")
    await at.check(seen, turns=1)
