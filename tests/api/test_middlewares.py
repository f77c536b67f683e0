"""What is refused before a body is read, and what every answer carries."""

from collections.abc import AsyncIterator
from typing import Annotated

import httpx
import pytest
from fastapi import FastAPI, Form, Request, UploadFile
from starlette.responses import StreamingResponse
from starlette.types import Message

from backend.api.deps import CurrentUser, Services
from backend.api.middlewares import FORM_OVERHEAD_BYTES, check_json
from backend.errors import ValidationFailed
from tests.api.conftest import MAX_UPLOAD_BYTES, PASSWORD, WithState, bearer

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def app(app: FastAPI) -> FastAPI:
    @app.post("/documents/upload/probe")
    async def upload(file: UploadFile, visibility: Annotated[str, Form()], user: CurrentUser) -> dict[str, object]:
        return {"size": len(await file.read()), "visibility": visibility, "user": user.username}

    @app.post("/echo")
    async def echo(request: Request) -> dict[str, int]:
        return {"size": len(await request.body())}

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            for n in range(3):
                yield f"data: {n}\n\n".encode()

        return StreamingResponse(pieces(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    return app


async def _endless(size: int, sent: list[int]) -> AsyncIterator[bytes]:
    while sum(sent) < size:
        sent.append(10_000)
        yield b"x" * 10_000


def _form(size: int) -> dict[str, object]:
    return {"files": {"file": ("a.txt", b"x" * size)}, "data": {"visibility": "private"}}


async def test_an_upload_passes(client: httpx.AsyncClient, token: str) -> None:
    answer = await client.post("/documents/upload/probe", headers=bearer(token), **_form(MAX_UPLOAD_BYTES))
    assert answer.json() == {"size": MAX_UPLOAD_BYTES, "visibility": "private", "user": "alice"}


@pytest.mark.parametrize(
    "path", ["/documents/upload", "/documents/upload/async", "/documents/batch", "/echo", "/auth/password"]
)
async def test_without_a_token_no_byte_of_a_body_is_read(client: httpx.AsyncClient, path: str) -> None:
    sent: list[int] = []
    for headers in ({}, bearer("x.y.z")):
        answer = await client.post(path, content=_endless(10**7, sent), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
    assert sent == []


async def test_a_broken_body_without_a_token_is_401_not_422(client: httpx.AsyncClient) -> None:
    answer = await client.post("/auth/password", content=b"{", headers=JSON)
    assert answer.status_code == 401


@pytest.mark.parametrize("path", ["/documents/upload", "/documents/batch", "/auth/login", "/auth/password"])
async def test_a_declared_size_is_refused_unread(client: httpx.AsyncClient, token: str, path: str) -> None:
    sent: list[int] = []
    headers = {**bearer(token), "Content-Length": str(10**9)}
    answer = await client.post(path, content=_endless(10**9, sent), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert sent == []


async def test_a_json_body_without_length_is_cut_at_the_limit(client: httpx.AsyncClient, token: str) -> None:
    sent: list[int] = []
    answer = await client.post("/auth/password", content=_endless(10**8, sent), headers={**bearer(token), **JSON})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert sum(sent) <= 60_000


async def test_an_upload_without_length_is_cut_at_the_limit(client: httpx.AsyncClient, token: str) -> None:
    sent: list[int] = []

    async def form() -> AsyncIterator[bytes]:
        yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\n'
        async for piece in _endless(10**8, sent):
            yield piece

    headers = {**bearer(token), "Content-Type": "multipart/form-data; boundary=b"}
    answer = await client.post("/documents/upload/probe", content=form(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert sum(sent) <= MAX_UPLOAD_BYTES + FORM_OVERHEAD_BYTES + 20_000


async def test_a_length_that_lies_does_not_help(app: FastAPI, services: Services) -> None:
    answer: list[Message] = []
    pieces = iter([b"x" * 40_000, b"x" * 40_000])

    async def receive() -> Message:
        return {"type": "http.request", "body": next(pieces), "more_body": True}

    async def send(message: Message) -> None:
        answer.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/auth/login",
        "query_string": b"",
        "headers": [(b"content-length", b"10"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
    }
    await WithState(app, services=services)(scope, receive, send)
    assert answer[0]["status"] == 413


@pytest.mark.parametrize("length", ["-1", "abc", "1e3", "9" * 30, "²"])
async def test_a_length_that_is_none_is_refused(client: httpx.AsyncClient, length: str) -> None:
    headers = [("Content-Type", "application/json"), ("Content-Length", length.encode())]
    answer = await client.post("/auth/login", content=b"{}", headers=headers)
    assert answer.status_code == 422


async def test_who_leaves_while_sending_gets_no_answer(app: FastAPI, services: Services) -> None:
    answer: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answer.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/auth/login",
        "query_string": b"",
        "headers": [],
        "client": None,
    }
    await WithState(app, services=services)(scope, receive, send)
    assert answer == []


async def test_every_answer_carries_the_headers(client: httpx.AsyncClient, token: str) -> None:
    answers = [
        await client.get("/health/live"),
        await client.get("/nothing"),
        await client.get("/auth/me"),
        await client.post("/auth/login", json={}),
        await client.get("/auth/me", params={"token": "x"}),
        await client.get("/stream"),
    ]
    for answer in answers:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Request-Id"]
    assert answers[0].headers["Cache-Control"] == "no-store"
    assert answers[-1].headers["Cache-Control"] == "no-cache"
    assert answers[-1].text == "data: 0\n\ndata: 1\n\ndata: 2\n\n"


async def test_only_the_named_origin_may_read_answers(client: httpx.AsyncClient) -> None:
    preflight = {
        "Origin": "https://chat.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, idempotency-key",
    }
    allowed = await client.options("/auth/login", headers=preflight)
    assert allowed.status_code == 200
    assert allowed.headers["Access-Control-Allow-Origin"] == "https://chat.example"
    assert "Access-Control-Allow-Credentials" not in allowed.headers
    refused = await client.get("/auth/me", headers={"Origin": "https://chat.example"})
    assert refused.headers["Access-Control-Allow-Origin"] == "https://chat.example"
    foreign = await client.get("/auth/me", headers={"Origin": "https://evil.example"})
    assert "Access-Control-Allow-Origin" not in foreign.headers


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 10_000,
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b"[" * 65 + b"]" * 65,
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b'{"a": "\xff"}',
        '{"a": 1}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": 1',
        b"{} {}",
        b'{"a": "\n"}',
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_not_strict_json_is_refused(body: bytes) -> None:
    with pytest.raises(ValidationFailed):
        check_json(body)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"null",
        b'{"a": "[[[[' + b"[{" * 500 + b'"}',
        b'{"a": "\\"' + b"[" * 500 + b'\\\\"}',
        b"[" * 64 + b"]" * 64,
        b"[" + b"[]," * 5000 + b"[]]",
        b'{"a": "\\ud800"}',
        b'{"a": 1e999}',
    ],
)
def test_strict_json_passes(body: bytes) -> None:
    check_json(body)


async def test_a_body_reaches_the_route_whole(client: httpx.AsyncClient, token: str) -> None:
    answer = await client.post("/echo", content=b"x" * 49_999, headers=bearer(token))
    assert answer.json() == {"size": 49_999}


async def test_login_works_through_it_all(client: httpx.AsyncClient, token: str) -> None:
    answer = await client.post("/auth/login", json={"username": "alice", "password": PASSWORD})
    assert answer.status_code == 200
