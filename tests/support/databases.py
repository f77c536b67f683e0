"""PostgreSQL and Redis behind a FaultProxy."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from backend.infra.database.base import Base
from backend.infra.database.migrate import migrate
from tests.support.fault_proxy import FaultProxy

STATEMENT_SECONDS = 60.0


@asynccontextmanager
async def postgres_proxy(url: URL) -> AsyncIterator[tuple[FaultProxy, URL]]:
    """A proxy in front of the server of ``url`` (on a unix socket), and the address that leads through it."""
    async with FaultProxy(Path(str(url.query["host"])) / ".s.PGSQL.5432") as proxy:
        yield proxy, url.set(host=proxy.host, port=proxy.port, query={})


@asynccontextmanager
async def redis_proxy(url: str) -> AsyncIterator[tuple[FaultProxy, str]]:
    """A proxy in front of the server of ``url`` (``unix://path?db=n``), and the address that leads through it."""
    parts = urlsplit(url)
    number = parse_qs(parts.query).get("db", ["0"])[0]
    async with FaultProxy(Path(parts.path)) as proxy:
        yield proxy, f"redis://{proxy.host}:{proxy.port}/{number}"


@asynccontextmanager
async def own_database(server_url: URL, name: str) -> AsyncIterator[URL]:
    """A migrated database for one test module, so that its tests can share a server; dropped at the end."""
    await _admin(server_url, f'drop database if exists "{name}" with (force)', f'create database "{name}"')
    url = server_url.set(database=name)
    await migrate(url)
    yield url
    await _admin(server_url, f'drop database "{name}" with (force)')


async def empty(url: URL) -> None:
    """Remove every row."""
    tables = ", ".join(f'"{table.name}"' for table in Base.metadata.sorted_tables)
    await _admin(url, f"truncate {tables} cascade")


async def _admin(url: URL, *statements: str) -> None:
    """Raises after ``STATEMENT_SECONDS`` if another connection, idle in a transaction, holds what a statement needs."""
    engine = create_async_engine(
        url,
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        connect_args={"timeout": STATEMENT_SECONDS, "command_timeout": STATEMENT_SECONDS},
    )
    async with engine.connect() as connection:
        for statement in statements:
            await connection.execute(text(statement))
    await engine.dispose()
