"""The step of the graph: whose order is used, what the floor drops, and what the trace says."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr, ValidationError

from backend.chat.citations import build_citations
from backend.infra.rerank import HttpReranker, NoReranker
from backend.rag.config import RagConfig
from backend.rag.pipeline import RagResult
from backend.rag.rerank import build_reranker
from backend.schemas.chat import normalize_rag_trace
from tests.rag.library import MemoryLibrary, leaf, pipeline
from tests.support.fake_rerank import FakeReranker

KEY = "sk-canary-0123456789"


@pytest.fixture
async def service() -> AsyncIterator[FakeReranker]:
    async with FakeReranker(scores={"c": 0.9, "a": 0.5, "b": 0.1}) as service:
        yield service


class Steps:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, icon: str, label: str, detail: str = "", *, group=None, group_label=None) -> None:
        self.seen.append(label)


async def run(service: FakeReranker, steps: Steps | None = None, language="en", **settings: Any) -> RagResult:
    config = RagConfig(rerank_base_url=service.base_url, rerank_api_key=SecretStr(KEY), rerank_model="bge", **settings)
    reranker = build_reranker(config)
    library = MemoryLibrary([leaf(name) for name in "abcd"])
    try:
        result = await pipeline(library, config, reranker).run("the question", uuid4(), language, steps or Steps())
    finally:
        await reranker.aclose()
    assert normalize_rag_trace(result.trace) == result.trace
    assert KEY not in repr(result.trace)
    return result


RERANK_FIELDS = (
    "rerank_enabled",
    "rerank_applied",
    "rerank_model",
    "rerank_endpoint",
    "rerank_error",
    "rerank_timeout_seconds",
    "rerank_min_score",
    "candidate_count",
    "post_rerank_count",
    "post_threshold_count",
)


def fields(result: RagResult) -> dict[str, Any]:
    return {name: result.trace[name] for name in RERANK_FIELDS if name in result.trace}


async def test_the_order_of_the_service_is_used_and_the_floor_drops(service: FakeReranker) -> None:
    steps = Steps()
    result = await run(service, steps, retrieval_top_k=3, rerank_min_score=0.2, rerank_timeout_seconds=20)
    assert [chunk.text for chunk in result.chunks] == ["c", "a"]
    assert fields(result) == {
        "rerank_enabled": True,
        "rerank_applied": True,
        "rerank_model": "bge",
        "rerank_endpoint": f"{service.host}/v1/rerank",
        "rerank_timeout_seconds": 20.0,
        "rerank_min_score": 0.2,
        "candidate_count": 4,
        "post_rerank_count": 3,
        "post_threshold_count": 2,
    }
    assert result.trace["retrieval_pipeline"] == "recall_merge_rerank"
    evidence = result.trace["retrieved_chunks"]
    assert [(item["text"], item["rerank_score"], item["rrf_rank"]) for item in evidence] == [
        ("c", 0.9, 3),
        ("a", 0.5, 1),
    ]
    assert [item["score"] for item in evidence] == [1 / 63, 1 / 61]
    assert "Passages reordered by relevance: 4" in steps.seen
    assert service.requests[0].body == {
        "model": "bge",
        "query": "the question",
        "documents": ["a", "b", "c", "d"],
        "top_n": 3,
    }


async def test_a_citation_has_the_score_that_decided(service: FakeReranker) -> None:
    result = await run(service, retrieval_top_k=2)
    assert [one.score for one in build_citations([1, 2], "[1] [2]", result.trace)] == [0.9, 0.5]
    service.answer = lambda _: (500, {})
    result = await run(service, retrieval_top_k=2)
    assert [one.score for one in build_citations([1, 2], "[1] [2]", result.trace)] == [1 / 61, 1 / 62]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((500, {"error": KEY}), "provider_unavailable"),
        ((401, {"error": KEY}), "provider_rejected"),
        ((429, {}), "provider_rate_limited"),
        (None, "provider_timeout"),
        (
            (200, {"results": [{"index": 9, "relevance_score": 1}, {"index": 0, "relevance_score": 1}]}),
            "provider_protocol",
        ),
        (
            (200, {"results": [{"index": 0, "relevance_score": 1}, {"index": 0, "relevance_score": 1}]}),
            "provider_protocol",
        ),
        (
            (200, b'{"results":[{"index":0,"relevance_score":NaN},{"index":1,"relevance_score":1}]}'),
            "provider_protocol",
        ),
    ],
)
async def test_any_fault_keeps_the_merged_order_and_is_named(
    service: FakeReranker, answer: tuple[int, Any] | None, code: str
) -> None:
    service.answer = lambda _: answer
    steps = Steps()
    seconds = 0.3 if answer is None else 30
    result = await run(service, steps, "zh", retrieval_top_k=2, rerank_min_score=5, rerank_timeout_seconds=seconds)
    assert [chunk.text for chunk in result.chunks] == ["a", "b"]
    assert fields(result) == {
        "rerank_enabled": True,
        "rerank_applied": False,
        "rerank_model": "bge",
        "rerank_endpoint": f"{service.host}/v1/rerank",
        "rerank_error": code,
        "rerank_timeout_seconds": seconds,
        "rerank_min_score": 5.0,
        "candidate_count": 4,
        "post_rerank_count": 2,
        "post_threshold_count": 2,
    }
    assert not any("rerank_score" in item for item in result.trace["retrieved_chunks"])
    assert "相关性重排失败，保留检索顺序" in steps.seen


async def test_nothing_above_the_floor_is_no_knowledge(service: FakeReranker) -> None:
    result = await run(service, rerank_min_score=0.95)
    assert result.chunks == []
    trace = result.trace
    assert (trace["rerank_applied"], trace["post_rerank_count"], trace["post_threshold_count"]) == (True, 4, 0)
    assert (trace["retrieval_empty"], trace["route"]) == (True, "no_knowledge")


async def test_nothing_recalled_is_not_sent(service: FakeReranker) -> None:
    config = RagConfig(rerank_base_url=service.base_url)
    reranker = build_reranker(config)
    steps = Steps()
    result = await pipeline(MemoryLibrary(), config, reranker).run("q", uuid4(), "en", steps)
    await reranker.aclose()
    assert service.requests == []
    assert (result.trace["rerank_applied"], "rerank_error" in result.trace) == (False, False)
    assert not any("reorder" in label.lower() for label in steps.seen)


async def test_the_configuration_chooses() -> None:
    assert isinstance(build_reranker(RagConfig()), NoReranker)
    remote = build_reranker(RagConfig(rerank_base_url="http://tei:8080/", rerank_model="m"))
    assert isinstance(remote, HttpReranker)
    assert (remote.model, remote.endpoint) == ("m", "tei:8080/v1/rerank")
    await remote.aclose()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rerank_base_url": "ftp://x"}, "RERANK_BASE_URL"),
        ({"rerank_base_url": "http://user:hunter2@x"}, "RERANK_BASE_URL"),
        ({"rerank_base_url": "http://x?key=hunter2"}, "RERANK_BASE_URL"),
        ({"rerank_api_key": "two words"}, "RERANK_API_KEY"),
    ],
)
def test_a_wrong_configuration_names_the_variable(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        RagConfig.model_validate(values)
