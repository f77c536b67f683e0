"""A turn with a rerank service: its order, its scores and its faults, from the stream to the stored message."""

from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import text, tool_call
from tests.support.fake_rerank import FakeReranker

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "sk-rerank-canary-0123456789"
FILES = {
    "pump.txt": "The pump holds 24 bar.",
    "valve.txt": "The valve of the pump opens at 12 bar.",
    "tank.txt": "The tank beside the pump holds 900 litres.",
}
SCORES = {"The tank beside the pump holds 900 litres.": 0.875, "The pump holds 24 bar.": 0.5}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service() -> AsyncIterator[FakeReranker]:
    async with FakeReranker(scores=SCORES) as service:
        yield service


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(service: FakeReranker, postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    env: Mapping[str, str] = {
        "RERANK_BASE_URL": service.base_url,
        "RERANK_API_KEY": KEY,
        "RERANK_MODEL": "bge",
        "RERANK_MIN_SCORE": "0.25",
        "RERANK_TIMEOUT_SECONDS": "30",
    }
    async with rack(postgres_url, valkey_url, f"rerank_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack, service: FakeReranker) -> AsyncIterator[Client]:
    service.answer = None
    await at.reset()
    async with at.user() as client:
        for name, content in FILES.items():
            answer = await client.http.post("/documents/upload", files={"file": (name, content.encode())})
            assert answer.status_code == 200, answer.text
        yield client


async def ask(at: Rack, alice: Client) -> tuple[Stream, dict[str, object]]:
    """The stream of one turn that cites both passages, and the stored message."""
    at.llm.script(tool_call("search_knowledge_base", {"query": "pump"}), text("One [1], two [2]."))
    stream = await alice.ask("What about the pump?")
    stored = (await alice.messages())[-1]
    assert stored["rag_trace"] == stream.one("trace")["rag_trace"]
    assert stored["citations"] == stream.one("citations")["citations"]
    assert KEY not in f"{stream.events} {at.server.logs()}"
    return stream, stored


async def test_citations_carry_the_score_of_the_service(at: Rack, alice: Client, service: FakeReranker) -> None:
    stream, stored = await ask(at, alice)
    trace = stream.one("trace")["rag_trace"]
    assert (trace["rerank_applied"], trace["rerank_endpoint"]) == (True, f"{service.host}/v1/rerank")
    assert (trace["candidate_count"], trace["post_rerank_count"], trace["post_threshold_count"]) == (3, 3, 2)
    cited = [(one["index"], one["filename"], one["score"]) for one in stored["citations"]]  # type: ignore[attr-defined]
    assert cited == [(1, "tank.txt", 0.875), (2, "pump.txt", 0.5)]
    assert any("reordered" in step["step"]["label"] for step in stream.of("rag_step"))


async def test_a_broken_service_costs_the_order_only(at: Rack, alice: Client, service: FakeReranker) -> None:
    service.answer = lambda _: (500, {"error": KEY})
    stream, stored = await ask(at, alice)
    trace = stream.one("trace")["rag_trace"]
    assert (trace["rerank_enabled"], trace["rerank_applied"]) == (True, False)
    assert trace["rerank_error"] == "provider_unavailable"
    assert stream.one("done")["status"] == "completed"
    scores = [one["score"] for one in stored["citations"]]  # type: ignore[attr-defined]
    assert scores == [chunk["score"] for chunk in trace["retrieved_chunks"][:2]]
    assert len(trace["retrieved_chunks"]) == 3
