"""A real server, or two, with their model, shared by the tests of one module."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from redis.asyncio import Redis
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.support.chat_client import Client, Stream, signed_in
from tests.support.databases import STATEMENT_SECONDS, empty, own_database, postgres_proxy, redis_proxy
from tests.support.fake_llm import FakeLLM
from tests.support.fault_proxy import FaultProxy
from tests.support.invariants import check_invariants, nothing_leaked
from tests.support.server import ServerProcess


@dataclass
class Rack:
    """``database`` leads to PostgreSQL itself, ``postgres`` and ``redis`` are the proxies that the servers use.

    ``peer`` is a second server process on the same data, where it was asked for.
    """

    server: ServerProcess
    llm: FakeLLM
    database: URL
    valkey_url: str
    postgres: FaultProxy
    redis: FaultProxy
    peer: ServerProcess | None = None

    def user(self) -> AbstractAsyncContextManager[Client]:
        """A new account."""
        return signed_in(self.server.url)

    async def sql(self, statement: str, **values: Any) -> list[Any]:
        """The rows of one statement on the database itself."""
        limits = {"timeout": STATEMENT_SECONDS, "command_timeout": STATEMENT_SECONDS}
        engine = create_async_engine(self.database, poolclass=NullPool, connect_args=limits)
        async with engine.begin() as connection:
            result = await connection.execute(text(statement), values)
            rows = list(result.all()) if result.returns_rows else []
        await engine.dispose()
        return rows

    async def flush_redis(self) -> None:
        async with Redis.from_url(self.valkey_url, socket_timeout=60, socket_connect_timeout=60) as redis:
            await redis.flushdb()

    async def check(self, *seen: Stream, turns: int | None = None) -> None:
        """INV, and that every request to the model was well formed."""
        await check_invariants(self.database, self.server, *seen, turns=turns)
        if self.peer is not None:
            nothing_leaked(self.peer)
        assert self.llm.violations == []

    async def reset(self) -> None:
        """As new: proxies open, no script, no rows."""
        await self.postgres.restore()
        await self.redis.restore()
        self.llm._scripts.clear()
        self.llm.requests.clear()
        self.llm.violations.clear()
        self.llm.default, self.llm.token_delay, self.llm.tokens = None, 0.0, None
        await empty(self.database)
        await self.flush_redis()


@asynccontextmanager
async def rack(
    postgres_url: URL,
    valkey_url: str,
    name: str,
    env: Mapping[str, str] | None = None,
    *,
    peer: bool = False,
    peer_env: Mapping[str, str] | None = None,
) -> AsyncIterator[Rack]:
    """A started server behind proxies, with ``peer`` two; ``name`` names its database, ``peer_env`` is of the second
    alone."""
    async with AsyncExitStack() as stack:
        data_dir = Path(stack.enter_context(TemporaryDirectory(prefix="citewire-rack-", ignore_cleanup_errors=True)))
        database = await stack.enter_async_context(own_database(postgres_url, name))
        llm = await stack.enter_async_context(FakeLLM())
        postgres, through = await stack.enter_async_context(postgres_proxy(database))
        redis, redis_url = await stack.enter_async_context(redis_proxy(valkey_url))
        settings = {
            "LLM_BASE_URL": llm.base_url,
            "LLM_MODEL": "fake",
            "LLM_API_KEY": "sk-canary-0123456789abcdef",
            "MAX_RUNS_PER_USER": "1000",
            **(env or {}),
        }
        servers: list[ServerProcess] = []
        for own in [{}, peer_env or {}][: 1 + peer]:
            server = ServerProcess(data_dir, database_url=through, redis_url=redis_url, env={**settings, **own})
            servers.append(await stack.enter_async_context(server))
        # Left by the last test, a fault would keep the servers from ending.
        stack.push_async_callback(postgres.restore)
        stack.push_async_callback(redis.restore)
        yield Rack(servers[0], llm, database, valkey_url, postgres, redis, servers[1] if peer else None)
