"""A model with a window of 4,096 tokens behind a real server (F05): no prompt is too long, no turn fails for it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client
from tests.support.fake_llm import text, tool_call

pytestmark = pytest.mark.asyncio(loop_scope="module")
WINDOW = 4_096
SENTENCE = {
    "en": "The warranty of the pump lasts twenty four months. ",
    "zh": "水泵的保修期为二十四个月，从购买之日起计算。",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    env = {
        "PROMPT_MAX_TOKENS": str(WINDOW),
        "ANSWER_MAX_TOKENS": "500",
        "CONTEXT_MESSAGES": "120",
        "RETRIEVAL_TOP_K": "50",
    }
    async with rack(postgres_url, valkey_url, f"window_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await shared.reset()
    shared.llm.window, shared.llm.too_long = WINDOW, 0
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


def shown(at: Rack) -> list[str]:
    return [message["content"] for message in at.llm.chats[-1].messages if message["role"] != "system"]


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_f05_sixty_long_turns(at: Rack, alice: Client, language: str):
    long = SENTENCE[language] * 8
    at.llm.default = text(f"answer {long}")
    for number in range(60):
        seen = await alice.ask(f"question {number} {long}")
        assert (seen.one("done")["status"], seen.of("error")) == ("completed", [])
    assert at.llm.too_long == 0
    prompt = shown(at)
    roles = [message["role"] for message in at.llm.chats[-1].messages if message["role"] != "system"]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"], "turns go whole"
    assert 1 < len(roles) < 119
    assert prompt[0].startswith(f"question {59 - len(roles) // 2} "), "the oldest go first"
    await at.check(turns=60)


@pytest.mark.parametrize("message", ["x" * 100_000, "水" * 30_000], ids=["en", "zh"])
async def test_f05_a_message_that_is_too_long_is_told_so_before_any_call(at: Rack, alice: Client, message: str):
    for route in ("/chat", "/chat/stream"):
        answer = await alice.post(route, {"message": message, "session_id": "s"})
        assert (answer.status_code, answer.json()["code"]) == (413, "message_too_large")
    assert at.llm.requests == []
    assert await alice.messages() == []
    assert (await alice.ask("short")).one("done")["status"] == "completed"
    await at.check(turns=1)


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_f05_fifty_large_passages(at: Rack, alice: Client, language: str):
    body = SENTENCE[language] * (20 if language == "en" else 12)
    content = "\n\n".join(f"# Passage {number}\n\n{body}" for number in range(50))
    uploaded = await alice.http.post("/documents/upload", files={"file": (f"{language}.md", content.encode())})
    assert uploaded.status_code == 200, uploaded.text
    question = "How long is the warranty?" if language == "en" else "水泵的保修期多长？"
    at.llm.script(tool_call("search_knowledge_base", {"query": question}), text("It is told [1], not [50]."))
    seen = await alice.ask(question)
    assert (seen.one("done")["status"], seen.of("error")) == ("completed", [])
    found = seen.one("trace")["rag_trace"]["retrieved_chunks"]
    passages = shown(at)[-1]
    assert "[1] " in passages
    assert f"[{len(found)}] " in passages
    assert f"[{len(found) + 1}] " not in passages, "what was cut is nowhere a source"
    assert [item["index"] for item in seen.one("citations")["citations"]] == [1]
    assert "[50]" not in seen.text
    assert (await alice.ask("And then?")).one("done")["status"] == "completed"
    assert at.llm.too_long == 0
    await at.check(seen, turns=2)


async def test_f05_a_provider_that_counts_more_is_asked_once_more_with_less(at: Rack, alice: Client):
    long = SENTENCE["en"] * 12
    at.llm.default = text(f"answer {long}")
    for number in range(3):
        await alice.ask(f"question {number} {long}")
    calls = len(at.llm.chats)
    at.llm.window = 1_900
    at.llm.default = text("Fine.")
    seen = await alice.ask("And now?")
    assert (seen.text, seen.one("done")["status"]) == ("Fine.", "completed")
    assert len(at.llm.chats) == calls + 2, "asked once more"
    assert len(shown(at)) < 7
    assert (await alice.ask("And then?")).one("done")["status"] == "completed"
    await at.check(seen, turns=5)
