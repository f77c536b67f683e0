"""What must happen before a body is read, as pure ASGI: streams pass through untouched."""

import asyncio
import json
import re
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uuid_utils import uuid7

from backend.api.deps import authenticate
from backend.api.errors import error_response
from backend.api.headers import add_headers
from backend.errors import AppError, TooLarge, Unauthorized, ValidationFailed
from backend.log import bind_request

PUBLIC_PATHS = frozenset({"/auth/register", "/auth/login"})
"""Where a body may come from someone unknown; everywhere else the token is checked before the body is read."""
UPLOAD_PREFIXES = ("/documents/upload", "/documents/batch")
THREAD_UPLOADS = re.compile(r"/sessions/[^/]+/uploads/?")
"""Paths whose bodies are files."""
FORM_OVERHEAD_BYTES = 65_536
"""What a multipart form may add around the file; the file itself is measured where it is stored."""
BODY_TIMEOUT_SECONDS = 30.0
MAX_JSON_DEPTH = 64
_QUERY_TOKENS = frozenset({"access_token", "token", "authorization", "jwt", "api_key"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class RequestContextMiddleware:
    """Outermost: the request id (the client's if it is sane), the log context, and the headers of every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else str(uuid7())
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                add_headers(MutableHeaders(scope=message), request_id, scope["path"])
            await send(message)

        with bind_request(request_id):
            await self.app(scope, receive, send_with_headers)


class GateMiddleware:
    """Refuses, in this order: a token in the query, a body without a valid token, a body too large, a body not JSON.

    Bodies of uploads (``UPLOAD_PREFIXES``, ``THREAD_UPLOADS``) are counted while they stream; all others are read here,
    in full and within ``BODY_TIMEOUT_SECONDS``, and must be strict JSON: UTF-8, no NaN, no repeated keys, no nesting
    beyond ``MAX_JSON_DEPTH`` (the framework's parser accepts all of that, and what comes after it may not).
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, max_upload_bytes: int) -> None:
        self.app = app
        self._max_body = max_body_bytes
        self._max_upload = max_upload_bytes + FORM_OVERHEAD_BYTES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            receive = await self._admit(request, receive)
        except AppError as error:
            await error_response(request, error)(scope, receive, send)
            return
        except _Disconnected:
            return
        await self.app(scope, receive, send)

    async def _admit(self, request: Request, receive: Receive) -> Receive:
        """The ``receive`` to go on with. Raises what refuses the request."""
        if _has_query_token(request.scope["query_string"]):
            raise Unauthorized
        path: str = request.scope["path"]
        is_upload = path.startswith(UPLOAD_PREFIXES) or THREAD_UPLOADS.fullmatch(path) is not None
        has_body = request.method in ("POST", "PUT", "PATCH")
        if has_body and request.scope["path"] not in PUBLIC_PATHS:
            await authenticate(request)
        limit = self._max_upload if is_upload else self._max_body
        if _declared_length(request.headers) > limit:
            raise TooLarge
        if is_upload or not has_body:
            return _counted(receive, limit)
        body = await _read(receive, limit)
        if body and _is_json(request.headers.get("content-type", "")):
            check_json(body)
        return _replay(body, receive)


class _Disconnected(Exception):
    """The client left before its body was complete; there is nobody to answer."""


def check_json(body: bytes) -> None:
    """Raises :class:`ValidationFailed` unless ``body`` is strict JSON."""
    try:
        if _depth_exceeds(body, MAX_JSON_DEPTH):
            raise ValueError("nested too deeply")
        json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise ValidationFailed(errors=[{"loc": ["body"], "msg": "The body is not valid JSON."}]) from None


def _depth_exceeds(body: bytes, limit: int) -> bool:
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    depth = 0
    for bracket in re.sub(rb'"(?:[^"\\]++|\\.)*+"|[^][{}"]++', b"", body, flags=re.DOTALL):
        depth += 1 if bracket in b"[{" else -1
        if depth > limit:
            return True
    return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is repeated")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


def _has_query_token(query: bytes) -> bool:
    names = (name.lower() for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    return any(name in _QUERY_TOKENS for name in names)


def _declared_length(headers: Headers) -> int:
    """The ``Content-Length``; 0 without one (the real size is counted anyway). Raises :class:`ValidationFailed`."""
    value = headers.get("content-length", "0")
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise ValidationFailed
    return int(value)


async def _read(receive: Receive, limit: int) -> bytes:
    """The whole body. Raises :class:`TooLarge`, :class:`ValidationFailed` when it does not come in time."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Disconnected
                body += message.get("body", b"")
                if len(body) > limit:
                    raise TooLarge
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError:
        raise ValidationFailed from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives ``body`` once and then what really comes, which is the disconnect."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _counted(receive: Receive, limit: int) -> Receive:
    """A ``receive`` that ends a body beyond ``limit``, and one that stands still, whatever the headers said."""
    total, complete = 0, False

    async def counted() -> Message:
        nonlocal total, complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                message = await receive()
        except TimeoutError:
            raise HTTPException(400) from None
        total += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if total > limit:
            raise HTTPException(413)  # the framework wraps any other error that comes out of reading a form
        return message

    return counted
