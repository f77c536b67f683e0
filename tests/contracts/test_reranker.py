"""What every reranker keeps to, and the HTTP one in both shapes, over a real server."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from backend.errors import ProviderError
from backend.infra.rerank import HttpReranker, NoReranker, Ranked, Reranker
from tests.support.fake_rerank import FakeReranker, RerankRequest

TEXTS = ["about valves", "about pumps", "about cats"]
SCORES = {"about pumps": 0.9, "about cats": 0.2, "about valves": 0.1}


def http(url: str, *, key: str | None = None, model: str | None = "m", seconds: float = 30.0) -> HttpReranker:
    return HttpReranker(url, model=model, api_key=key, timeout_seconds=seconds)


@pytest.fixture(params=["off", "jina", "tei"])
async def reranker(request: pytest.FixtureRequest) -> AsyncIterator[Reranker]:
    if request.param == "off":
        yield NoReranker()
        return
    async with FakeReranker(shape=request.param, scores=SCORES) as service:
        made = http(service.base_url)
        yield made
        await made.aclose()


async def test_the_best_come_first_or_nothing_is_said(reranker: Reranker) -> None:
    for _ in range(2):  # the second time the shape is known
        ranked = await reranker.rerank("pumps?", TEXTS, 2)
        expected = [Ranked(1, 0.9), Ranked(2, 0.2)] if reranker.enabled else None
        assert ranked == expected
    assert (reranker.endpoint is None) == (not reranker.enabled)


async def test_fewer_texts_than_asked_for(reranker: Reranker) -> None:
    assert await reranker.rerank("pumps?", TEXTS[:1], 8) in (None, [Ranked(0, 0.1)])


async def test_no_texts(reranker: Reranker) -> None:
    assert not await reranker.rerank("pumps?", [], 8)


async def test_nul_and_surrogates(reranker: Reranker) -> None:
    ranked = await reranker.rerank("a\x00\ud800b", ["about\x00 pumps", "half \udfff"], 2)
    assert ranked is None or ranked[0] == Ranked(0, 0.9)


async def test_equal_scores_keep_the_order(reranker: Reranker) -> None:
    assert await reranker.rerank("q", ["x", "y", "z"], 3) in (None, [Ranked(n, 0.0) for n in range(3)])


# --- HTTP --------------------------------------------------------------------------------------------------------


async def test_the_requests_of_both_shapes() -> None:
    async with FakeReranker(scores=SCORES) as jina:
        reranker = http(jina.base_url, key="sk-canary")
        await reranker.rerank("q", TEXTS, 2)
        await reranker.aclose()
    assert [(request.path, request.body) for request in jina.requests] == [
        ("/v1/rerank", {"model": "m", "query": "q", "documents": TEXTS, "top_n": 2})
    ]
    assert jina.requests[0].headers["authorization"] == "Bearer sk-canary"
    assert reranker.endpoint == f"{jina.host}/v1/rerank"
    async with FakeReranker(shape="tei", scores=SCORES) as tei:
        reranker = http(tei.base_url, model=None)
        await reranker.rerank("q", TEXTS, 2)
        await reranker.rerank("q", TEXTS, 2)
        await reranker.aclose()
    known = ("/rerank", {"query": "q", "texts": TEXTS, "truncate": True})
    assert [(request.path, request.body) for request in tei.requests] == [
        ("/v1/rerank", {"query": "q", "documents": TEXTS, "top_n": 2}),
        known,
        known,
    ]
    assert "authorization" not in tei.requests[0].headers
    assert reranker.endpoint == f"{tei.host}/rerank"


@pytest.mark.parametrize(
    ("suffix", "path"),
    [
        ("", "/v1/rerank"),
        ("/", "/v1/rerank"),
        ("/v2", "/v2/rerank"),
        ("/api", "/api/v1/rerank"),
        ("/rerank", "/rerank"),
    ],
)
async def test_the_path_that_is_asked_first(suffix: str, path: str) -> None:
    async with FakeReranker(answer=lambda _: (200, {"results": [{"index": 0, "relevance_score": 1}]})) as service:
        reranker = http(service.base_url + suffix)
        assert await reranker.rerank("q", ["x"], 1) == [Ranked(0, 1.0)]
        await reranker.aclose()
    assert [request.path for request in service.requests] == [path]


async def test_an_address_that_is_used_as_it_is_may_speak_either_shape() -> None:
    async with FakeReranker(shape="tei", scores=SCORES) as service:
        reranker = http(service.base_url + "/rerank")
        assert await reranker.rerank("q", TEXTS, 1) == [Ranked(1, 0.9)]
        await reranker.aclose()
    assert [request.path for request in service.requests] == ["/rerank", "/rerank"]


def results(*items: object) -> dict[str, object]:
    return {"results": list(items)}


def item(index: object, score: object) -> dict[str, object]:
    return {"index": index, "relevance_score": score}


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (500, {}, "provider_unavailable"),
        (429, {}, "provider_rate_limited"),
        (401, {"error": "bad key sk-canary"}, "provider_rejected"),
        (404, {}, "provider_rejected"),
        (302, {}, "provider_rejected"),
        (200, b"not json", "provider_protocol"),
        (200, b"\xff\xfe", "provider_protocol"),
        (200, {"scores": [1, 2, 3]}, "provider_protocol"),
        (200, results(), "provider_protocol"),
        (200, results(item(0, 0.5)), "provider_protocol"),
        (200, results(item(0, 0.5), item(3, 0.4)), "provider_protocol"),
        (200, results(item(0, 0.5), item(-1, 0.4)), "provider_protocol"),
        (200, results(item(0, 0.5), item(0, 0.4)), "provider_protocol"),
        (200, results(item(0, 0.5), item("1", 0.4)), "provider_protocol"),
        (200, results(item(0, 0.5), item(True, 0.4)), "provider_protocol"),
        (200, results(item(0, 0.5), item(1, None)), "provider_protocol"),
        (200, b'{"results":[{"index":0,"relevance_score":NaN},{"index":1,"relevance_score":1}]}', "provider_protocol"),
        (200, b'[{"index":0,"score":Infinity},{"index":1,"score":1}]', "provider_protocol"),
        (200, b'[{"index":0,"score":1e999},{"index":1,"score":1}]', "provider_protocol"),
        (200, b" " * (5 * 1024 * 1024), "provider_protocol"),
    ],
)
async def test_faults_and_refused_answers_have_codes(status: int, body: object, code: str) -> None:
    async with FakeReranker(answer=lambda _: (status, body)) as service:
        reranker = http(service.base_url, key="sk-canary")
        with pytest.raises(ProviderError) as caught:
            await reranker.rerank("q", TEXTS, 2)
        await reranker.aclose()
    assert caught.value.code == code
    assert "sk-canary" not in f"{caught.value!r} {caught.value.fields}"


async def test_a_late_answer_is_not_waited_for() -> None:
    async with FakeReranker(answer=lambda _: None) as service:
        reranker = http(service.base_url, seconds=0.3)
        with pytest.raises(ProviderError) as caught:
            async with asyncio.timeout(30):
                await reranker.rerank("q", TEXTS, 2)
        await reranker.aclose()
    assert (caught.value.code, caught.value.retryable) == ("provider_timeout", True)


async def test_a_caller_that_is_refused_is_not_asked_again_in_the_other_shape() -> None:
    seen: list[RerankRequest] = []
    async with FakeReranker(answer=lambda request: (seen.append(request), (403, {}))[1]) as service:
        reranker = http(service.base_url)
        with pytest.raises(ProviderError):
            await reranker.rerank("q", TEXTS, 2)
        await reranker.aclose()
    assert len(seen) == 1


async def test_a_service_that_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        reranker = http(f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(ProviderError) as caught:
            await reranker.rerank("q", TEXTS, 2)
        await reranker.aclose()
    assert caught.value.code == "provider_unavailable"
