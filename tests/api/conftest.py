"""The API's own pieces around a real database and a real cache, called in process."""

import secrets
from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.types import ASGIApp, Receive, Scope, Send

from backend.api.config import ApiConfig
from backend.api.deps import Services
from backend.api.router import api_router, install
from backend.auth.config import AuthConfig
from backend.auth.service import create_auth_service
from backend.infra.cache import Cache, create_redis
from backend.infra.rate_limit import RateLimiter

PASSWORD = "correct horse battery"
INVITE = "invite-" + secrets.token_hex(8)
MAX_UPLOAD_BYTES = 200_000


class WithState:
    """What a server does with the state that the lifespan yields: every request gets a copy."""

    def __init__(self, app: ASGIApp, **state: object) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "state": dict(self.state)}, receive, send)


@pytest.fixture
def api_config() -> ApiConfig:
    return ApiConfig(cors_origins=("https://chat.example",), max_body_bytes=50_000)


@pytest.fixture
def auth_config() -> AuthConfig:
    return AuthConfig(admin_invite_code=SecretStr(INVITE), login_rate_per_minute=0, register_rate_per_minute=0)


@pytest.fixture
async def cache(redis_url: str) -> AsyncIterator[Cache]:
    redis = create_redis(redis_url)
    yield Cache(redis)
    await redis.aclose()


class Ready:
    """What the readiness check asks of the rooms that are not called here."""

    draining = False

    async def check_index(self) -> None:
        """The index is there."""


@pytest.fixture
def services(engine: AsyncEngine, cache: Cache, api_config: ApiConfig, auth_config: AuthConfig) -> Services:
    rooms_not_called_here = dict.fromkeys(Services.__dataclass_fields__)
    parts = {
        "engine": engine,
        "cache": cache,
        "rate_limiter": RateLimiter(cache),
        "chat": Ready(),
        "knowledge": Ready(),
        "auth": create_auth_service(engine, auth_config, secrets.token_urlsafe(48)),
        "api_config": api_config,
        "auth_config": auth_config,
    }
    return Services(**{**rooms_not_called_here, **parts})  # type: ignore[arg-type]


@pytest.fixture
def app(api_config: ApiConfig) -> FastAPI:
    app = FastAPI()
    app.include_router(api_router())
    install(app, api_config, max_upload_bytes=MAX_UPLOAD_BYTES)
    return app


@pytest.fixture
async def client(app: FastAPI, services: Services) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(WithState(app, services=services), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture
async def token(client: httpx.AsyncClient) -> str:
    """The token of the first account, an admin."""
    answer = await client.post("/auth/register", json={"username": "alice", "password": PASSWORD})
    return answer.json()["access_token"]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}
