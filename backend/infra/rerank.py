"""Passages in a better order: a rerank service over HTTP, or none.

Two shapes are spoken. The one of Jina and Cohere, which vLLM and Infinity speak too::

    POST …/v1/rerank {model, query, documents, top_n} -> {results: [{index, relevance_score}]}

and that of TEI::

    POST …/rerank {query, texts} -> [{index, score}]

The first is tried; a server that does not know it (a 4xx that says so) is asked in the second, and whichever it
answered is kept for the process.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import httpx
from pydantic import AliasChoices, BaseModel, Field, FiniteFloat, StrictInt, TypeAdapter, ValidationError

from backend.errors import ProviderError
from backend.text import clean_text

CONNECT_SECONDS = 5.0
MAX_RESPONSE_BYTES = 4 * 1024 * 1024
_OTHER_SHAPE = frozenset({400, 404, 405, 415, 422})
"""Statuses of a server that does not know the path or the body, as against one that refuses the caller."""

Shape = Literal["results", "tei"]


@dataclass(frozen=True, slots=True)
class Ranked:
    """``index`` is the place of the text in what was asked; ``score`` is on the service's own scale, finite."""

    index: int
    score: float


class Reranker(Protocol):
    """Orders texts by how well they answer a question. Raises :class:`ProviderError` within its time limit."""

    @property
    def enabled(self) -> bool:
        """Whether there is a service to ask."""
        ...

    @property
    def model(self) -> str | None:
        """The model that is asked for, if any is named."""
        ...

    @property
    def endpoint(self) -> str | None:
        """Host and path that are asked, never a key; may change with the first answer."""
        ...

    async def rerank(self, query: str, texts: Sequence[str], top_n: int) -> list[Ranked] | None:
        """The ``top_n`` best of ``texts`` (all, if there are fewer), best first; None when there is no service."""
        ...

    async def aclose(self) -> None:
        """Ends connections."""
        ...


class NoReranker:
    """No service: the order stays as it is."""

    enabled = False
    model = None
    endpoint = None

    async def rerank(self, query: str, texts: Sequence[str], top_n: int) -> list[Ranked] | None:
        return None

    async def aclose(self) -> None:
        return None


class _Item(BaseModel):
    index: StrictInt
    score: FiniteFloat = Field(validation_alias=AliasChoices("relevance_score", "score"))


class _Results(BaseModel):
    results: list[_Item]


_ANSWER = TypeAdapter[_Results | list[_Item]](_Results | list[_Item])


class HttpReranker:
    """``base_url`` that ends in ``/rerank`` is used as it is, one that ends in a version (``/v1``) gets ``/rerank``.

    To any other ``/v1/rerank`` is added, or ``/rerank`` in the shape of TEI. ``timeout_seconds`` holds for a whole
    call, both tries together.
    """

    enabled = True

    def __init__(self, base_url: str, *, model: str | None, api_key: str | None, timeout_seconds: float) -> None:
        self.model = model
        self._urls = _urls(base_url.rstrip("/"))
        self._shape: Shape | None = None
        self._seconds = timeout_seconds
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(timeout_seconds, connect=min(CONNECT_SECONDS, timeout_seconds))
        self._client = httpx.AsyncClient(headers=headers, timeout=timeout, follow_redirects=False)

    @property
    def endpoint(self) -> str:
        url = httpx.URL(self._urls[self._shape or "results"])
        return f"{url.netloc.decode('ascii')}{url.path}"

    async def rerank(self, query: str, texts: Sequence[str], top_n: int) -> list[Ranked] | None:
        if not texts:
            return []
        try:
            async with asyncio.timeout(self._seconds):
                content = await self._ask(clean_text(query), [clean_text(text) for text in texts], top_n)
        except (httpx.TimeoutException, TimeoutError) as error:
            raise ProviderError("provider_timeout", retryable=True) from error
        except httpx.HTTPError as error:
            raise ProviderError("provider_unavailable", retryable=True) from error
        return _read(content, len(texts), top_n)

    async def _ask(self, query: str, texts: list[str], top_n: int) -> bytes:
        """The body of the first answer with status 200."""
        refused = 0
        for shape in (self._shape,) if self._shape else ("results", "tei"):
            status, content = await self._post(self._urls[shape], self._body(shape, query, texts, top_n))
            if status == 200:
                self._shape = shape
                return content
            refused = refused or status
            if status not in _OTHER_SHAPE:
                break
        raise _status_error(refused)

    def _body(self, shape: Shape, query: str, texts: list[str], top_n: int) -> dict[str, Any]:
        if shape == "tei":
            return {"query": query, "texts": texts, "truncate": True}
        body = {"query": query, "documents": texts, "top_n": min(top_n, len(texts))}
        return body if self.model is None else {"model": self.model, **body}

    async def _post(self, url: str, body: dict[str, Any]) -> tuple[int, bytes]:
        async with self._client.stream("POST", url, json=body) as response:
            content = b""
            async for part in response.aiter_bytes():
                content += part
                if len(content) > MAX_RESPONSE_BYTES:
                    raise ProviderError("provider_protocol", retryable=False)
            return response.status_code, content

    async def aclose(self) -> None:
        await self._client.aclose()


def _urls(base: str) -> dict[Shape, str]:
    if base.endswith("/rerank"):
        return {"results": base, "tei": base}
    if re.search(r"/v\d+$", base):
        return {"results": f"{base}/rerank", "tei": f"{base}/rerank"}
    return {"results": f"{base}/v1/rerank", "tei": f"{base}/rerank"}


def _status_error(status: int) -> ProviderError:
    if status == 429:
        return ProviderError("provider_rate_limited", retryable=True)
    if status >= 500:
        return ProviderError("provider_unavailable", retryable=True)
    return ProviderError("provider_rejected", retryable=False)


def _read(content: bytes, count: int, top_n: int) -> list[Ranked]:
    """The answer, best first. Too few items, or an index that is unknown or comes twice, make it none."""
    try:
        answer = _ANSWER.validate_json(content)
    except ValidationError as error:
        raise ProviderError("provider_protocol", retryable=False) from error
    items = answer.results if isinstance(answer, _Results) else answer
    indexes = {item.index for item in items}
    if len(indexes) != len(items) or not indexes <= set(range(count)) or len(items) < min(top_n, count):
        raise ProviderError("provider_protocol", retryable=False)
    ranked = sorted(items, key=lambda item: (-item.score, item.index))
    return [Ranked(item.index, item.score) for item in ranked[:top_n]]
