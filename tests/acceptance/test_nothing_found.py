"""Extractive answers when there is nothing to answer from (I01)."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.running import Running, running
from tests.support.chat_client import Client, Stream

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    async with running(postgres_url, valkey_url, f"nothing_{worker_id}", llm_base_url=None, llm_model=None) as made:
        yield made


async def upload(client: Client, name: str = "pump.txt") -> None:
    content = "The pump holds 24 bar and is checked each spring."
    answer = await client.http.post("/documents/upload", files={"file": (name, content.encode())})
    assert answer.status_code == 200, answer.text


def says_nothing_was_found(seen: Stream) -> None:
    """A whole turn that tells so, cites nothing and counts nothing."""
    done, trace = seen.one("done"), seen.one("trace")["rag_trace"]
    assert (done["status"], done["finish_reason"]) == ("completed", "stop")
    assert seen.of("error") == []
    assert seen.text.strip()
    assert "[1]" not in seen.text
    assert "pump" not in seen.text
    assert any(phrase in seen.text for phrase in ("no documents", "nothing", "not found", "do not", "does not"))
    assert seen.one("citations")["citations"] == []
    assert trace["tool_used"] is True
    assert trace["retrieved_chunks"] == trace["initial_retrieved_chunks"] == []
    assert (trace["recall_count"], trace["retrieval_empty"]) == (0, True)
    assert (trace["post_merge_candidate_count"], trace["auto_merge_applied"]) == (0, False)


async def test_i01_an_empty_library(at: Running, alice: Client):
    says_nothing_was_found(await alice.ask("How much does it hold?"))
    await at.check(turns=1)


async def test_i01_a_library_whose_documents_were_all_deleted(at: Running, alice: Client):
    for name in ("pump.txt", "second.txt"):
        await upload(alice, name)
    assert (await alice.ask("How much does the pump hold?")).one("citations")["citations"]
    for name in ("pump.txt", "second.txt"):
        assert (await alice.http.delete(f"/documents/{name}")).status_code == 200
    says_nothing_was_found(await alice.ask("How much does it hold?"))
    says_nothing_was_found(await alice.ask("How much does it hold?", "another"))
    await at.check(turns=3)


async def test_i01_a_library_whose_documents_all_failed(at: Running, alice: Client):
    for name, content in (("a.pdf", b"%PDF-1.4 broken"), ("b.txt", b" \n ")):
        answer = await alice.http.post("/documents/upload", files={"file": (name, content)})
        assert answer.status_code == 422, answer.text
    says_nothing_was_found(await alice.ask("How much does it hold?"))


EMPTY = ["what is the of and to", "?!… -- ;;", "😀🎉", "\u200b.", "的 了", "()[]{}*^~\"'\\", "AND OR NOT"]


@pytest.mark.parametrize("question", EMPTY)
async def test_i01_a_question_without_a_word_that_says_anything(at: Running, alice: Client, question: str):
    await upload(alice)
    seen = await alice.ask(question)
    if question == "的 了":  # one model's stop words are another's words: it completes, whatever it finds
        assert seen.one("done")["status"] == "completed"
        return
    says_nothing_was_found(seen)
    awaited = (await alice.post("/chat", {"message": question, "session_id": "b"})).json()
    assert (awaited["response"], awaited["citations"]) == (seen.text, [])


async def test_i01_in_chinese(at: Running, alice: Client):
    answer = await alice.post("/chat", {"message": "水泵能承受多少压力?"}, headers={"Accept-Language": "zh-CN"})
    assert answer.json()["citations"] == []
    assert answer.json()["status"] == "completed"
    assert any("\u4e00" <= char <= "\u9fff" for char in answer.json()["response"])
