"""One streamed chat completions call over HTTP: deadlines, decoding, and every failure as a ``ProviderError``.

The OpenAI SDK is not used for the call: it hides ``[DONE]`` (so a cut answer looks whole), skips the lines in which
gateways report errors, indexes fields that may be missing, quotes bodies in its exceptions, and walks the whole
request once more on the event loop. Nor is httpx, on which it stands: aiohttp's parser, in C, takes half of the CPU of
a stream and a third of that of a call (ADR 0011).
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from io import BytesIO
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
import orjson
import structlog
from aiohttp.http_exceptions import HttpProcessingError

from backend.errors import ProviderError
from backend.infra.config import ModelConfig
from backend.infra.llm.breaker import Breaker
from backend.infra.llm.errors import (
    TransientError,
    error_text,
    event_error,
    is_error,
    protocol_error,
    retry_after_seconds,
    status_error,
)
from backend.infra.llm.sse import Event, EventDecoder
from backend.text import clean_json

MAX_EVENT_BYTES = 4 * 1024 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 64 * 1024
_NOBODY_THERE = frozenset({502, 503, 504})
"""What a proxy says in the place of a provider that does not answer it."""
KEEP_ALIVE_SECONDS = 15
"""How long an idle connection to the provider is kept for the next call."""
READ_OUT_SECONDS = 0.1
"""How long the end of a body may take after the answer is whole; usually it is there already."""

_log = structlog.get_logger("llm")


class Clock:
    """The deadlines of one model call, its retries included. Times are those of the event loop, in seconds."""

    def __init__(self, config: ModelConfig) -> None:
        self._now = asyncio.get_running_loop().time
        self._idle = config.llm_idle_seconds
        self._connect = config.llm_connect_seconds
        self._first_byte = config.llm_first_byte_seconds
        self._total_at = self._now() + config.llm_total_seconds
        self._wait = self._first_byte

    def started(self) -> None:
        """A new attempt: connecting and then the first byte have their time again."""
        self._wait = self._connect + self._first_byte

    def heard(self) -> None:
        """Bytes came: from now on the idle time counts."""
        self._wait = self._idle

    def hurry(self, seconds: float) -> None:
        """Nothing that matters can come any more: the end must come within ``seconds``."""
        self._total_at = min(self._total_at, self._now() + seconds)

    def next_read(self) -> float:
        """When the read that starts now has waited long enough."""
        return min(self._now() + self._wait, self._total_at)

    def left(self) -> float:
        """Seconds until the whole call must be over."""
        return self._total_at - self._now()


class Endpoint:
    """``POST {base_url}/chat/completions`` of one provider, for all its models. Holds the key and shows it nowhere.

    When the provider could not be reached several times in a row, calls fail at once for some seconds.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._url = f"{config.llm_base_url}/chat/completions"
        self._key = config.llm_api_key
        self._connect_seconds = config.llm_connect_seconds
        self._proxy = _proxy_for(self._url)
        self._session: aiohttp.ClientSession | None = None
        self._breaker = Breaker()

    async def events(self, payload: dict[str, Any], clock: Clock) -> AsyncGenerator[dict[str, Any]]:
        """The JSON chunks of one answer, in order, up to ``[DONE]``.

        A plain JSON answer (a provider that does not stream) comes as the one chunk it is. Closing the iterator, or
        cancelling its task, closes the connection. Raises ``ProviderError``: also when the stream ends without
        ``[DONE]``, for only the reader of the chunks knows whether the answer was whole.
        """
        clock.started()
        response = await self._reach(payload, clock)
        try:
            if response.status != 200:
                raise await self._refusal(response, clock)
            async with aclosing(_pieces(response, clock)) as pieces:
                async for event in _decode(response, pieces):
                    if event.data == b"[DONE]":
                        await _read_out(pieces, clock)
                        return
                    yield self._parse(event)
            raise protocol_error()
        finally:
            response.close()  # drops the connection unless the body was read to its end

    async def aclose(self) -> None:
        """Closes pooled connections. May be called twice."""
        if self._session is not None:
            await self._session.close()

    async def _reach(self, payload: dict[str, Any], clock: Clock) -> aiohttp.ClientResponse:
        """The head of an answer. A call that the breaker refuses is no ``TransientError``: it is not tried again."""
        if wait := self._breaker.refused_for():
            raise ProviderError("provider_unavailable", retryable=True, retry_after=math.ceil(wait))
        try:
            response = await self._send(payload, clock)
        except ProviderError:
            self._breaker.failed()
            raise
        if response.status in _NOBODY_THERE:
            self._breaker.failed()
        else:
            self._breaker.succeeded()
        return response

    async def _send(self, payload: dict[str, Any], clock: Clock) -> aiohttp.ClientResponse:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", "User-Agent": "citewire"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.get_secret_value()}"
        if self._session is None:
            self._session = _session(self._connect_seconds)
        body = BytesIO(_encode(payload))
        try:
            async with asyncio.timeout_at(clock.next_read()):
                return await self._session.post(
                    self._url, data=body, headers=headers, proxy=self._proxy, allow_redirects=False
                )
        except aiohttp.ConnectionTimeoutError as exc:
            raise TransientError("provider_timeout", retryable=True) from exc
        except TimeoutError as exc:
            raise ProviderError("provider_timeout", retryable=True) from exc
        except (aiohttp.ClientError, OSError) as exc:
            # Refused, unresolvable, or a kept connection that the server had closed: nothing was answered.
            raise TransientError("provider_unavailable", retryable=True) from exc

    async def _refusal(self, response: aiohttp.ClientResponse, clock: Clock) -> ProviderError:
        body = await _body_start(response, clock)
        try:
            value: object = orjson.loads(body)
        except orjson.JSONDecodeError:
            value = None
        wait = retry_after_seconds(response.headers, datetime.now(UTC))
        error = status_error(response.status, value, wait)
        provider_request = response.headers.get("x-request-id")
        self._record(error, value, status=response.status, provider_request_id=provider_request)
        return error

    def _parse(self, event: Event) -> dict[str, Any]:
        loaded = _loads(event.data)
        value = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else None
        if event.name == "error" or (value is not None and is_error(value)):
            error = event_error(cast("object", loaded))
        elif value is None:
            # A page: the address is wrong, or a proxy wants a login; trying again does not help.
            error = protocol_error(retryable=not event.data.lstrip().startswith(b"<"))
        else:
            return value
        self._record(error, cast("object", loaded))
        raise error

    def _record(self, error: ProviderError, body: object, **fields: Any) -> None:
        detail = error_text(body)
        if self._key is not None:
            detail = detail.replace(self._key.get_secret_value(), "[redacted]")
        _log.warning("provider_error", code=error.code, detail=detail[:500], **fields)


def _session(connect_seconds: float) -> aiohttp.ClientSession:
    """Reads have no limit here: ``Clock`` sets it for each one. Active runs bound the number of connections."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS, ssl=httpx.create_ssl_context()),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
    )


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for ``url``, looked up once: the library would ask in a thread each time."""
    parts = urlsplit(url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


async def _pieces(response: aiohttp.ClientResponse, clock: Clock) -> AsyncGenerator[bytes]:
    """The body as it comes, each read with its deadline; none is held while the consumer works."""
    received = 0
    while True:
        try:
            async with asyncio.timeout_at(clock.next_read()):
                piece = await response.content.readany()
        except TimeoutError as exc:
            raise ProviderError("provider_timeout", retryable=True) from exc
        except (aiohttp.ClientPayloadError, HttpProcessingError) as exc:
            if _is_lost(response):
                raise ProviderError("provider_unavailable", retryable=True) from exc
            raise protocol_error() from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise ProviderError("provider_unavailable", retryable=True) from exc
        if not piece:
            return
        clock.heard()
        received += len(piece)
        if received > MAX_ANSWER_BYTES:
            raise protocol_error(retryable=False)
        yield piece


def _is_lost(response: aiohttp.ClientResponse) -> bool:
    """Whether the connection broke, where a body that ended too early only says that it did."""
    connection = response.connection
    protocol = None if connection is None else connection.protocol
    return protocol is not None and isinstance(protocol.exception(), OSError)


async def _read_out(pieces: AsyncIterator[bytes], clock: Clock) -> None:
    """Read the end of the body, so that the connection can be used again; one that does not end is closed."""
    clock.hurry(READ_OUT_SECONDS)
    with suppress(ProviderError):
        await anext(pieces, b"")


async def _decode(response: aiohttp.ClientResponse, pieces: AsyncIterator[bytes]) -> AsyncIterator[Event]:
    if "json" in response.headers.get("content-type", ""):
        yield Event("", b"".join([piece async for piece in pieces]))
        yield Event("", b"[DONE]")
        return
    decoder = EventDecoder()
    async for piece in pieces:
        for event in decoder.feed(piece):
            yield event
        if decoder.pending > MAX_EVENT_BYTES:
            raise protocol_error(retryable=False)
    for event in decoder.close():
        yield event


async def _body_start(response: aiohttp.ClientResponse, clock: Clock) -> bytes:
    """The first bytes of a refusal; what cannot be read is not worth another error."""
    clock.heard()
    body = b""
    try:
        async with aclosing(_pieces(response, clock)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > MAX_ERROR_BYTES:
                    break
    except ProviderError:
        return body
    return body


def _encode(payload: dict[str, Any]) -> bytes:
    try:
        body = orjson.dumps(payload)
    except TypeError:  # a lone surrogate
        return orjson.dumps(clean_json(payload))
    return orjson.dumps(clean_json(payload)) if b"\\u0000" in body else body


def _loads(data: bytes) -> object:
    """JSON, or the text itself if it is none. Lone surrogates and broken UTF-8 inside strings are let through."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        text = data.decode(errors="replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
