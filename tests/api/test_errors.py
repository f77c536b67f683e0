"""One form for every error, and nothing in it that should not be there."""

import json
from uuid import UUID

import httpx
import orjson
import pytest
from fastapi import FastAPI
from pydantic import BaseModel

from backend.errors import RunActive, StorageUnavailable
from tests.api.conftest import PASSWORD


@pytest.fixture
def app(app: FastAPI) -> FastAPI:
    @app.get("/crash")
    async def crash() -> None:
        raise RuntimeError("secret detail of the crash")

    @app.get("/busy")
    async def busy() -> None:
        raise RunActive(run_id="r1")

    @app.get("/gone")
    async def gone() -> None:
        raise StorageUnavailable(retry_after=0.2) from OSError("secret detail of the driver")

    @app.get("/nan")
    async def nan() -> None:
        raise RunActive(score=float("nan"), text="\ud800")

    @app.get("/number/{number}")
    async def number(number: int) -> None: ...

    return app


async def test_unknown_path_and_method(client: httpx.AsyncClient) -> None:
    answer = await client.get("/nothing")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert set(answer.json()) == {"detail", "code", "request_id"}
    answer = await client.delete("/auth/me")
    assert (answer.status_code, answer.json()["code"], answer.headers["Allow"]) == (405, "method_not_allowed", "GET")


async def test_the_text_of_a_crash_is_never_shown(client: httpx.AsyncClient) -> None:
    answer = await client.get("/crash", headers={"X-Request-Id": "abc-1"})
    assert answer.status_code == 500
    assert answer.json() == {
        "detail": "Something went wrong on the server.",
        "code": "internal_error",
        "request_id": "abc-1",
    }
    assert answer.headers["X-Request-Id"] == "abc-1"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_fields_and_retry_after(client: httpx.AsyncClient) -> None:
    busy = await client.get("/busy")
    assert (busy.status_code, busy.json()["code"], busy.json()["run_id"]) == (409, "run_active", "r1")
    gone = await client.get("/gone")
    assert (gone.status_code, gone.json()["code"], gone.headers["Retry-After"]) == (503, "storage_unavailable", "1")
    assert "secret" not in gone.text


async def test_what_json_cannot_carry_is_made_safe(client: httpx.AsyncClient) -> None:
    answer = await client.get("/nan")
    assert orjson.loads(answer.content)["score"] is None
    assert answer.json()["text"] == "\ufffd"


@pytest.mark.parametrize(
    ("language", "detail"),
    [
        (None, "Not found."),
        ("zh-CN,zh;q=0.9,en;q=0.8", "未找到。"),
        ("en;q=0.3, zh;q=0.2", "Not found."),
        ("%%", "Not found."),
    ],
)
async def test_the_language_is_the_one_asked_for(client: httpx.AsyncClient, language: str | None, detail: str) -> None:
    headers = {} if language is None else {"Accept-Language": language}
    answer = await client.get("/nothing", headers=headers)
    assert (answer.json()["detail"], answer.json()["code"]) == (detail, "not_found")


async def test_validation_errors_say_where_and_never_what(client: httpx.AsyncClient) -> None:
    answer = await client.get("/number/canary-1234")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["loc"] == ["path", "number"]
    assert "canary" not in answer.text


async def test_j12_validation_errors_do_not_repeat_a_password(client: httpx.AsyncClient) -> None:
    for body in (
        {"username": "alice", "password": "kanarie"},
        {"username": "", "password": "kanarie-kanarie"},
        {"username": ["kanarie"], "password": ["kanarie-kanarie"]},
        {"username": "alice", "password": PASSWORD, "role": "kanarie"},
        {"username": "alice", "password": PASSWORD, "admin_code": ["kanarie"]},
    ):
        answer = await client.post("/auth/register", json=body)
        assert answer.status_code == 422
        assert "kanarie" not in answer.text


async def test_long_and_odd_keys_in_an_error_are_bounded(client: httpx.AsyncClient) -> None:
    body = {"k" * 20_000: 1, "\ud800": 2, **{f"key{n}": n for n in range(500)}}
    answer = await client.post("/auth/login", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 20
    assert len(answer.content) < 10_000


async def test_request_ids(client: httpx.AsyncClient) -> None:
    made = await client.get("/nothing")
    assert UUID(made.headers["X-Request-Id"]).version == 7
    assert made.json()["request_id"] == made.headers["X-Request-Id"]
    assert (await client.get("/health/live", headers={"X-Request-Id": "a.b:c_d-1"})).headers[
        "X-Request-Id"
    ] == "a.b:c_d-1"
    for bad in ("x" * 65, "a b", "a\tb", "<script>", "é"):
        answer = await client.get("/nothing", headers=[("X-Request-Id", bad.encode())])
        assert answer.json()["request_id"] != bad


class _Error(BaseModel):
    detail: str
    code: str
    request_id: str


async def test_the_documentation_names_the_errors(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    for path, operations in schema["paths"].items():
        if not path.startswith("/auth"):
            continue
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    reference = answer["content"]["application/json"]["schema"]["$ref"]
                    assert reference == "#/components/schemas/ErrorBody", (path, status)
    assert set(_Error.model_fields) <= set(schema["components"]["schemas"]["ErrorBody"]["properties"])
