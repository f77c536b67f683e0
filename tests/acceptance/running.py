"""The whole application in this process, on a real socket: what a server process does, with its engine in reach."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from redis.asyncio import Redis
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from backend.api.deps import Services
from backend.app import create_app
from backend.settings import Settings
from tests.support.chat_client import Client, signed_in
from tests.support.databases import empty, own_database, redis_proxy
from tests.support.fake_llm import FakeLLM
from tests.support.fault_proxy import FaultProxy
from tests.support.invariants import check_invariants


@dataclass
class Running:
    """``database`` and ``valkey_url`` lead to the servers themselves, ``redis`` is the proxy that the app uses."""

    app: FastAPI
    url: str
    services: Services
    llm: FakeLLM
    database: URL
    valkey_url: str
    redis: FaultProxy
    data_dir: Path

    def user(self, name: str | None = None) -> AbstractAsyncContextManager[Client]:
        """A new account; the first one since :meth:`reset` is admin."""
        return signed_in(self.url, name)

    async def sql(self, statement: str, **values: Any) -> list[Any]:
        engine = create_async_engine(self.database, poolclass=NullPool)
        async with engine.begin() as connection:
            result = await connection.execute(text(statement), values)
            rows = list(result.all()) if result.returns_rows else []
        await engine.dispose()
        return rows

    async def check(self, **expected: Any) -> None:
        """INV, and that every request to the model was well formed."""
        await check_invariants(self.database, **expected)
        assert self.llm.violations == []

    async def reset(self) -> None:
        """As new: no script, no rows, nothing cached."""
        await self.redis.restore()
        self.services.cache._closed_again_at = None
        self.llm._scripts.clear()
        self.llm.requests.clear()
        self.llm.violations.clear()
        self.llm.default = None
        await empty(self.database)
        redis = Redis.from_url(self.valkey_url)
        await redis.flushdb()
        await redis.aclose()


@asynccontextmanager
async def running(postgres_url: URL, valkey_url: str, name: str, **settings: Any) -> AsyncIterator[Running]:
    """The served application; ``name`` names its database. With ``llm_base_url=None`` it answers by extraction."""
    async with AsyncExitStack() as stack:
        data_dir = Path(stack.enter_context(TemporaryDirectory(prefix="citewire-app-", ignore_cleanup_errors=True)))
        database = await stack.enter_async_context(own_database(postgres_url, name))
        llm = await stack.enter_async_context(FakeLLM())
        redis, redis_url = await stack.enter_async_context(redis_proxy(valkey_url))
        given: dict[str, Any] = {
            "data_dir": data_dir,
            "database_url": SecretStr(database.render_as_string(hide_password=False)),
            "redis_url": SecretStr(redis_url),
            "jwt_secret_key": SecretStr(secrets.token_urlsafe(48)),
            "llm_base_url": llm.base_url,
            "llm_model": "fake",
            "login_rate_per_minute": 0,
            "register_rate_per_minute": 0,
            "chat_rate_per_minute": 0,
        }
        stack.enter_context(_logging_put_back())
        app = create_app(Settings(_env_file=None, **{**given, **settings}))
        built: list[Services] = []
        url = await stack.enter_async_context(_served(_noting(app, built)))
        yield Running(app, url, built[0], llm, database, valkey_url, redis, data_dir)


def _noting(app: FastAPI, built: list[Services]) -> FastAPI:
    original = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(served: FastAPI) -> AsyncIterator[Any]:
        async with original(served) as state:
            built.append(state["services"])
            yield state

    app.router.lifespan_context = lifespan
    return app


@asynccontextmanager
async def _served(app: FastAPI) -> AsyncIterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="on"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        if task.done():
            await task
            raise RuntimeError("the application did not start")
        await asyncio.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@contextmanager
def _logging_put_back() -> Any:
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.configure(**configured)
