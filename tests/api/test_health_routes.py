"""Alive, ready, degraded, down."""

from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import URL

from backend.api.deps import Services
from backend.auth.service import create_auth_service
from backend.infra.cache import Cache, create_redis
from backend.infra.database.engine import create_engine
from backend.infra.rate_limit import RateLimiter
from tests.api.conftest import PASSWORD, WithState, bearer


def _client(app: FastAPI, services: Services) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(WithState(app, services=services), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def _with(services: Services, **changes: object) -> Services:
    fields = {name: getattr(services, name) for name in Services.__dataclass_fields__}
    return Services(**{**fields, **changes})


async def test_alive_and_ready(client: httpx.AsyncClient) -> None:
    assert (await client.get("/health/live")).json() == {"status": "ok"}
    ready = await client.get("/health/ready")
    assert (ready.status_code, ready.json()) == (
        200,
        {"status": "ok", "dependencies": {"postgres": "ok", "redis": "ok", "index": "ok"}},
    )


async def test_without_redis_it_is_degraded_and_everything_works(
    app: FastAPI, services: Services, tmp_path: Path
) -> None:
    redis = create_redis(f"unix://{tmp_path}/none")
    cache = Cache(redis)
    async with _client(app, _with(services, cache=cache, rate_limiter=RateLimiter(cache))) as client:
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert ready.json()["dependencies"] == {"postgres": "ok", "redis": "degraded", "index": "ok"}
        body = {"username": "alice", "password": PASSWORD}
        token = (await client.post("/auth/register", json=body)).json()["access_token"]
        assert (await client.post("/auth/login", json=body)).status_code == 200
        assert (await client.get("/auth/me", headers=bearer(token))).status_code == 200
    await redis.aclose()


@pytest.fixture
def no_postgres_url(tmp_path: Path) -> URL:
    return URL.create("postgresql+asyncpg", username="kanarie", password="kanarie-pw", query={"host": str(tmp_path)})


async def test_without_postgres_it_is_down_and_says_so(
    app: FastAPI, services: Services, token: str, no_postgres_url: URL
) -> None:
    engine = create_engine(no_postgres_url, pool_size=1)
    auth = create_auth_service(engine, services.auth_config, "x" * 48)
    signing = services.auth
    async with _client(app, _with(services, engine=engine, auth=auth)) as client:
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "down")
        assert ready.json()["dependencies"]["postgres"] == "down"
        assert (await client.get("/health/live")).status_code == 200
        login = await client.post("/auth/login", json={"username": "alice", "password": PASSWORD})
        assert (login.status_code, login.json()["code"]) == (503, "storage_unavailable")
        assert int(login.headers["Retry-After"]) >= 1
        assert "kanarie" not in login.text + ready.text
    signing._accounts._engine = engine  # the token is good, only the account cannot be read
    async with _client(app, services) as client:
        me = await client.get("/auth/me", headers=bearer(token))
        assert (me.status_code, me.json()["code"]) == (503, "storage_unavailable")
    await engine.dispose()
