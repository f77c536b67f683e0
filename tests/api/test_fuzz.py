"""Whatever is sent, the answer is a documented 4xx and the process goes on (case J13)."""

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.api.deps import Services
from tests.api.conftest import PASSWORD, WithState, bearer

PATHS = ("/auth/register", "/auth/login", "/auth/password")
FUZZ = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
JSON = {"Content-Type": "application/json"}
ANY_TEXT = st.text(st.characters(categories=("L", "N", "P", "S", "Z", "C")), max_size=40)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(
    st.sampled_from(["username", "password", "role", "admin_code", "old", "new", "__proto__"]) | ANY_TEXT,
    ANY_JSON,
    max_size=6,
)

BODIES: dict[str, bytes] = {
    "empty": b"",
    "blank": b" ",
    "not JSON": b"username=alice&password=x",
    "cut": b'{"username": "al',
    "null": b"null",
    "number": b"1",
    "list": b"[]",
    "text": b'"alice"',
    "deep list": b"[" * 10_000 + b"]" * 10_000,
    "deep object": b'{"username":' * 10_000 + b"1" + b"}" * 10_000,
    "deep and open": b'{"username": ' + b"[" * 20_000,
    "deep for what follows the parser": b'{"username": ' + b"[" * 480 + b"]" * 480 + b"}",
    "deep below the limit": b'{"username": ' + b"[" * 60 + b"]" * 60 + b"}",
    "NaN": b'{"username": NaN, "password": 1}',
    "Infinity": b'{"username": -Infinity}',
    "huge number": b'{"username": ' + b"9" * 10_000 + b"}",
    "huge exponent": b'{"username": 1e999999}',
    "repeated keys": b'{"username": "alice", "username": "bob", "password": "long enough 1", "old": "x", "new": "y"}',
    "invalid UTF-8": b'{"username": "\xff\xfe", "password": "long enough 1"}',
    "UTF-16": '{"username": "alice"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"username": "alice"}',
    "NUL": b'{"username": "alice"}\x00',
    "wrong types": b'{"username": {}, "password": [], "old": 1, "new": null}',
    "missing keys": b"{}",
    "proto": b'{"__proto__": {"role": "admin"}, "constructor": 1}',
}


@pytest.fixture
async def fuzzed(app: FastAPI, services: Services, token: str) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(WithState(app, services=services), raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=bearer(token)) as client:
        yield client


def _check(answer: httpx.Response) -> None:
    assert 400 <= answer.status_code < 500, answer.text
    body = answer.json()
    assert body["code"]
    assert body["request_id"] == answer.headers["X-Request-Id"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", BODIES)
async def test_j13_a_malformed_body_is_a_4xx(fuzzed: httpx.AsyncClient, path: str, name: str) -> None:
    for headers in (JSON, {"Content-Type": "application/json; charset=utf-16"}, {"Content-Type": "application/x+json"}):
        _check(await fuzzed.post(path, content=BODIES[name], headers=headers))


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "multipart/form-data", "multipart/form-data; boundary=x", "é", "application/xml"]
)
async def test_j13_a_wrong_content_type_is_a_4xx(fuzzed: httpx.AsyncClient, content_type: str) -> None:
    body = json.dumps({"username": "bob", "password": PASSWORD}).encode()
    headers = [("Content-Type", content_type.encode())]
    for path in PATHS:
        _check(await fuzzed.post(path, content=body, headers=headers))


async def test_j13_a_repeated_key_is_refused_and_makes_nothing(fuzzed: httpx.AsyncClient) -> None:
    body = b'{"username": "bob", "password": "long enough 1", "role": "user", "role": "user"}'
    answer = await fuzzed.post("/auth/register", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_error")
    login = await fuzzed.post("/auth/login", json={"username": "bob", "password": "long enough 1"})
    assert login.status_code == 401


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=b", b"no boundary here"),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n"),
        ("multipart/form-data; boundary=b", b"--b\r\n\xff\xff: \r\n"),
        ("application/json", b"{}"),
        ("text/plain", b""),
    ],
)
async def test_j13_a_malformed_form_is_a_4xx(fuzzed: httpx.AsyncClient, content_type: str, body: bytes) -> None:
    answer = await fuzzed.post("/documents/upload", content=body, headers={"Content-Type": content_type})
    _check(answer)
    assert answer.json()["code"] == "validation_error"


@FUZZ
@given(path=st.sampled_from(PATHS), body=st.binary(max_size=200))
async def test_j13_random_bytes(fuzzed: httpx.AsyncClient, path: str, body: bytes) -> None:
    _check(await fuzzed.post(path, content=body, headers=JSON))


@FUZZ
@given(path=st.sampled_from(PATHS), body=ANY_JSON | FIELDS)
async def test_j13_random_json(fuzzed: httpx.AsyncClient, path: str, body: Any) -> None:
    answer = await fuzzed.post(path, content=json.dumps(body).encode(), headers=JSON)
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, answer.text


@FUZZ
@given(username=ANY_TEXT, password=ANY_TEXT.map(lambda text: "12345678" + text))
async def test_j13_any_name_registers_and_signs_in_or_is_refused(
    fuzzed: httpx.AsyncClient, username: str, password: str
) -> None:
    username += secrets.token_hex(4)
    body = json.dumps({"username": username, "password": password}).encode()
    registered = await fuzzed.post("/auth/register", content=body, headers=JSON)
    login = await fuzzed.post("/auth/login", content=body, headers=JSON)
    if registered.status_code == 200:
        assert login.json()["username"] == registered.json()["username"]
    else:
        assert (registered.status_code, login.status_code) == (422, 401)


@FUZZ
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "NOPE"]),
    path=st.sampled_from(["/auth/me", "/auth/login", "/health/live", "/nothing"]),
    query=st.dictionaries(ANY_TEXT.filter(lambda text: text < "\ud800" or text > "\udfff"), st.just("x"), max_size=2),
    name=st.sampled_from(
        ["Authorization", "X-Request-Id", "Accept-Language", "Content-Type", "Content-Length", "Origin"]
    ),
    value=st.binary(max_size=60),
)
async def test_j13_random_requests(
    fuzzed: httpx.AsyncClient, method: str, path: str, query: dict[str, str], name: str, value: bytes
) -> None:
    query = {key.encode(errors="replace").decode(): item for key, item in query.items()}
    answer = await fuzzed.request(method, path, params=query, headers=[(name, value)])
    assert answer.status_code < 500, answer.text
    assert answer.headers["X-Request-Id"]


async def test_j13_the_process_is_still_well(fuzzed: httpx.AsyncClient) -> None:
    for body in BODIES.values():
        await fuzzed.post("/auth/login", content=body, headers=JSON)
    assert (await fuzzed.get("/health/ready")).status_code == 200
    assert (await fuzzed.get("/auth/me")).status_code == 200
