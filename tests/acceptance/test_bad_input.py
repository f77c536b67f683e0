"""Every wrong request has its one code, and leaves nothing behind."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import URL

from backend.chat.cursors import _encode
from tests.acceptance.running import Running, running
from tests.support.chat_client import Client

SOME_ID = UUID(int=7)
"""An id that nobody has; the same in every process of a test run, because it is part of tests' names."""


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    limits = {"max_message_chars": 1_000, "max_upload_bytes": 100_000, "max_body_bytes": 50_000}
    async with running(postgres_url, valkey_url, f"bad_{worker_id}", **limits) as made:
        yield made


async def refused(at: Running, answer: httpx.Response, status: int, code: str) -> None:
    """The one form of an error, and nothing written."""
    body = answer.json()
    assert (answer.status_code, body.get("code")) == (status, code), answer.text
    assert body["request_id"] == answer.headers["x-request-id"]
    assert body["detail"]
    for table in ("chat_sessions", "chat_messages", "runs", "documents", "document_versions", "chunks"):
        assert (await at.sql(f"select count(*) from {table}"))[0][0] == 0, table


both = pytest.mark.parametrize("route", ["/chat", "/chat/stream"])


@both
@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"message": ""}, 422, "validation_error"),
        ({"message": " \n\t\u3000"}, 422, "validation_error"),
        ({"message": "\x00"}, 422, "validation_error"),
        ({"message": None}, 422, "validation_error"),
        ({"message": 5}, 422, "validation_error"),
        ({"message": "x" * 1_001}, 413, "message_too_large"),
        ({"message": "x" * 60_000}, 413, "too_large"),
        ({"unknown": 1}, 422, "validation_error"),
        ({"multitask": "both"}, 422, "validation_error"),
        ({"client_message_id": ""}, 422, "validation_error"),
        ({"client_message_id": "x" * 201}, 422, "validation_error"),
        ({"collections": ["x" * 201]}, 422, "validation_error"),
        ({"hitl_id": "x"}, 409, "stale_hitl"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else str(value),
)
async def test_a_wrong_question(at: Running, alice: Client, route: str, fields: dict[str, Any], status: int, code: str):
    await refused(at, await alice.post(route, {"message": "hello", **fields}), status, code)
    assert at.llm.chats == []


async def test_a_question_of_the_greatest_length_is_taken(at: Running, alice: Client):
    answer = await alice.post("/chat", {"message": "x" * 1_000})
    assert answer.status_code == 200


SESSION_IDS = [".", "..", "x" * 121, "a/b", "a b", "é", "", "a\n", "a\x00/", "a?b"]


@both
@pytest.mark.parametrize("session_id", SESSION_IDS, ids=ascii)
async def test_a_wrong_session_id_in_a_question(at: Running, alice: Client, route: str, session_id: str):
    answer = await alice.post(route, {"message": "hello", "session_id": session_id})
    await refused(at, answer, 422, "validation_error")


@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
@pytest.mark.parametrize("session_id", ["%2e", "%2e%2e", "x" * 121, "a%20b", "%C3%A9", "a%0A", "a%00"])
async def test_a_wrong_session_id_in_a_path(at: Running, alice: Client, method: str, session_id: str):
    request = alice.http.build_request(method, "/sessions/x", json={"title": "x"} if method == "PATCH" else None)
    request.url = request.url.copy_with(raw_path=f"/sessions/{session_id}".encode())
    await refused(at, await alice.http.send(request), 422, "validation_error")


async def test_a_slash_in_a_path_is_no_session(at: Running, alice: Client):
    for path in ("/sessions/a/b", "/sessions/a%2Fb"):
        assert (await alice.get(path)).status_code in (404, 422)


@pytest.mark.parametrize("session_id", ["x" * 120, "a.b", "...", "A-Z_0:9"])
async def test_a_right_session_id(at: Running, alice: Client, session_id: str):
    assert (await alice.post("/chat", {"message": "hello", "session_id": session_id})).status_code == 200
    assert len(await alice.messages(session_id)) == 2


UNKNOWN = ["01900000-0000-7000-8000-000000000000", "x", "1", "null", "%00", "x" * 300]


@pytest.mark.parametrize("unknown", UNKNOWN)
async def test_what_is_unknown(at: Running, alice: Client, unknown: str):
    for method, path in (
        ("GET", f"/chat/runs/{unknown}"),
        ("GET", f"/chat/runs/{unknown}/stream"),
        ("POST", f"/chat/runs/{unknown}/stop"),
        ("GET", f"/chat/messages/{unknown}"),
        ("DELETE", f"/documents/{unknown}.txt"),
        ("DELETE", f"/documents/a.txt?document_id={SOME_ID}"),
    ):
        await refused(at, await alice.http.request(method, path), 404, "not_found")
    for method in ("PATCH", "DELETE"):
        answer = await alice.http.request(method, "/sessions/none", json={"title": "x"} if method == "PATCH" else None)
        await refused(at, answer, 404, "not_found")


FAR = "9999-12-31T23:59:59.999999-14:00"
NEAR = "0001-01-01T00:00:00+14:00"
GARBAGE = [
    "x",
    "=",
    "%%%",
    "é",
    "\x00",
    "A" * 201,
    _encode("seq 5"),
    _encode("2026-01-01T00:00:00+00:00"),
    _encode(f"2026-01-01T00:00:00 {SOME_ID}"),
    _encode("2026-01-01T00:00:00+00:00 x"),
    _encode(f"yesterday {SOME_ID}"),
    _encode("seq -1"),
    _encode("seq 1 or 1=1"),
    _encode("seq " + "9" * 19),
]


@pytest.mark.parametrize("cursor", GARBAGE, ids=ascii)
async def test_a_cursor_of_nobody(at: Running, alice: Client, cursor: str):
    await refused(at, await alice.get("/sessions", params={"cursor": cursor}), 422, "validation_error")
    if cursor != _encode("seq 5"):
        answer = await alice.post("/chat", {"message": "hello"})
        assert answer.status_code == 200
        page = await alice.get("/sessions/default_session", params={"before": cursor})
        assert (page.status_code, page.json()["code"]) == (422, "validation_error")


@pytest.mark.parametrize("when", [FAR, NEAR])
async def test_a_cursor_beyond_all_time(at: Running, alice: Client, when: str):
    await refused(
        at, await alice.get("/sessions", params={"cursor": _encode(f"{when} {uuid4()}")}), 422, "validation_error"
    )


@pytest.mark.parametrize(
    "path",
    ["/sessions?limit=0", "/sessions?limit=201", "/sessions?limit=x", "/sessions/s?limit=501", "/sessions/s?limit=-1"],
)
async def test_a_wrong_limit(at: Running, alice: Client, path: str):
    await refused(at, await alice.get(path), 422, "validation_error")


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "9" * 30])
async def test_a_wrong_place_in_a_stream(at: Running, alice: Client, after: str):
    path = f"/chat/runs/{uuid4()}/stream"
    await refused(at, await alice.get(path, params={"after": after}), 422, "validation_error")
    await refused(at, await alice.get(path, headers={"Last-Event-ID": after}), 422, "validation_error")


# --- keys ---


@both
async def test_two_different_keys_for_one_question(at: Running, alice: Client, route: str):
    body = {"message": "hello", "client_message_id": "one"}
    await refused(
        at, await alice.post(route, body, headers={"Idempotency-Key": "two"}), 422, "idempotency_key_mismatch"
    )
    assert at.llm.chats == []
    answer = await alice.post("/chat", body, headers={"Idempotency-Key": "one"})
    assert answer.status_code == 200
    again = await alice.post("/chat", {"message": "hello"}, headers={"Idempotency-Key": "one"})
    assert again.json()["run_id"] == answer.json()["run_id"]


@both
@pytest.mark.parametrize("key", ["", "x" * 201])
async def test_a_key_of_a_wrong_length(at: Running, alice: Client, route: str, key: str):
    answer = await alice.post(route, {"message": "hello"}, headers={"Idempotency-Key": key})
    await refused(at, answer, 422, "validation_error")


# --- files ---

PDF_WITHOUT_TEXT = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]>>endobj
trailer<</Root 1 0 R>>
"""
FILES = [
    ("empty.txt", b"", 422, "empty_document"),
    ("blank.txt", b" \n\n ", 422, None),
    ("nul.txt", b"\x00" * 50, 422, None),
    ("blank.md", b"\n", 422, None),
    ("broken.pdf", b"%PDF-1.4 and nothing more", 422, None),
    ("scan.pdf", PDF_WITHOUT_TEXT, 422, None),
    ("text.pdf", b"only text", 415, "type_mismatch"),
    ("image.txt", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)), None, None),
    ("tool.exe", b"MZ\x90", 415, "type_mismatch"),
    ("noname", b"text", 415, "type_mismatch"),
    ("big.txt", b"x" * 100_001, 413, "too_large"),
    ("huge.txt", b"x" * 300_000, 413, "too_large"),
    ("..", b"text", 422, "validation_error"),
]


@pytest.mark.parametrize(("name", "content", "status", "code"), FILES, ids=[item[0] for item in FILES])
async def test_an_unusable_file_leaves_nothing(
    at: Running, alice: Client, name: str, content: bytes, status: int | None, code: str | None
):
    before = sorted(path for path in at.data_dir.rglob("*") if path.is_file() and "index" not in path.parts)
    rows = await at.services.knowledge._index._table.count_rows()
    answer = await alice.http.post("/documents/upload", files={"file": (name, content)})
    assert answer.status_code in (415, 422) if status is None else answer.status_code == status, answer.text
    await refused(at, answer, answer.status_code, code or answer.json()["code"])
    assert answer.json()["code"] not in ("internal_error", "validation_error") or code
    assert (await alice.get("/documents")).json()["documents"] == []
    after = sorted(path for path in at.data_dir.rglob("*") if path.is_file() and "index" not in path.parts)
    assert after == before
    assert await at.services.knowledge._index._table.count_rows() == rows
    assert (await at.sql("select count(*) from purge_outbox"))[0][0] == 0


async def test_a_form_without_its_file(at: Running, alice: Client):
    for form in ({"data": {"visibility": "private"}}, {"data": {"file": "text"}}, {"json": {"file": "x"}}):
        await refused(at, await alice.http.post("/documents/upload", **form), 422, "validation_error")
    wrong = {"files": {"file": ("a.txt", b"text")}, "data": {"visibility": "public"}}
    await refused(at, await alice.http.post("/documents/upload", **wrong), 422, "validation_error")


async def test_a_user_shares_nothing(at: Running, alice: Client):
    async with at.user() as bob:
        form = {"files": {"file": ("a.txt", b"text")}, "data": {"visibility": "shared"}}
        await refused(at, await bob.http.post("/documents/upload", **form), 403, "forbidden")
