"""Requests made from the published schema, right and wrong ones, against the whole application (case J13)."""

import logging
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import requests
import schemathesis
import structlog
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr
from schemathesis import GenerationMode
from sqlalchemy import URL

from backend.api.router import api_router
from backend.app import create_app
from backend.settings import Settings
from tests.api.conftest import PASSWORD, WithState, bearer

FUZZ = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)


ENDLESS = {"GET /documents/jobs/stream"}
"""Goes on until its reader leaves; the transport here gives an answer when it has ended."""


def _operations() -> list[schemathesis.schemas.APIOperation]:  # type: ignore[name-defined]
    app = FastAPI()
    app.include_router(api_router())
    schema = schemathesis.openapi.from_dict(app.openapi())
    operations = [result.ok() for result in schema.get_all_operations()]
    return [operation for operation in operations if operation.label not in ENDLESS]


def _cases(mode: GenerationMode) -> st.SearchStrategy[schemathesis.Case]:
    return st.sampled_from(_operations()).flatmap(lambda operation: operation.as_strategy(generation_mode=mode))


@pytest.fixture
async def whole(database_url: URL, redis_url: str, data_dir: Path) -> AsyncIterator[httpx.AsyncClient]:
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.get_config()
    app = create_app(
        Settings(
            _env_file=None,
            data_dir=data_dir,
            database_url=SecretStr(database_url.render_as_string(hide_password=False)),
            redis_url=SecretStr(redis_url),
            jwt_secret_key=SecretStr(secrets.token_urlsafe(48)),
            login_rate_per_minute=0,
            register_rate_per_minute=0,
            chat_rate_per_minute=0,
        )
    )
    async with app.router.lifespan_context(app) as state:
        transport = httpx.ASGITransport(WithState(app, **state), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            body = {"username": "fuzz", "password": PASSWORD}
            registered = await client.post("/auth/register", json=body)
            client.headers.update(bearer(registered.json()["access_token"]))
            yield client
    root.handlers[:], root.level = handlers, level
    structlog.configure(**configured)


async def _send(client: httpx.AsyncClient, case: schemathesis.Case) -> httpx.Response:
    """What the case would send, with our token instead of a made one."""
    prepared = requests.Request(**case.as_transport_kwargs(base_url="http://test")).prepare()
    headers = {name: value for name, value in prepared.headers.items() if name.lower() != "authorization"}
    return await client.request(prepared.method or "GET", prepared.url or "/", content=prepared.body, headers=headers)


@FUZZ
@given(case=_cases(GenerationMode.NEGATIVE))
async def test_j13_wrong_requests_of_every_route_are_4xx(whole: httpx.AsyncClient, case: schemathesis.Case) -> None:
    answer = await _send(whole, case)
    assert answer.status_code < 500, (case.operation.label, answer.text)
    if answer.status_code >= 400:
        assert answer.json()["code"]


@FUZZ
@given(case=_cases(GenerationMode.POSITIVE))
async def test_j13_right_requests_of_every_route_never_crash(whole: httpx.AsyncClient, case: schemathesis.Case) -> None:
    answer = await _send(whole, case)
    assert answer.status_code < 500, (case.operation.label, answer.text)
