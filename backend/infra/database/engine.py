"""The async engine, and the one place where driver errors become ours."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from backend.errors import StorageUnavailable

_GONE_CLASSES = ("08", "57P", "53")
"""SQLSTATE classes that mean "not now": connection, operator intervention, insufficient resources."""


def async_url(url: str) -> URL:
    """``url`` of any Postgres spelling (``postgres://``, ``postgresql://``) for the asyncpg driver.

    Raises ``ValueError`` when it is not a Postgres URL.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError("not a database URL") from None  # the cause's text may hold the password
    if parsed.get_backend_name() not in {"postgres", "postgresql"}:
        raise ValueError("not a PostgreSQL URL")
    return parsed.set(drivername="postgresql+asyncpg")


def create_engine(url: URL, *, pool_size: int, statement_timeout: float = 30.0) -> AsyncEngine:
    """An engine whose every wait is bounded: pool 30 s, connect 5 s, statement ``statement_timeout`` seconds."""
    return create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=30,
        pool_pre_ping=True,
        connect_args={
            "timeout": 5,
            "command_timeout": statement_timeout,
            "server_settings": {"timezone": "UTC", "application_name": "citewire"},
        },
    )


def is_unavailable(error: BaseException) -> bool:
    """Whether ``error`` says that Postgres cannot be reached now, as against a fault of the statement."""
    if isinstance(error, PoolTimeout | InterfaceError | OperationalError | OSError | TimeoutError):
        return True
    if isinstance(error, asyncpg.PostgresConnectionError | asyncpg.InterfaceError):
        return True
    if isinstance(error, DBAPIError):
        state = getattr(error.orig, "sqlstate", None)
        return error.connection_invalidated or state is None or state.startswith(_GONE_CLASSES)
    return False


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncGenerator[AsyncConnection]:
    """One transaction on one connection; commits at the end, rolls back on error.

    Raises :class:`StorageUnavailable` when Postgres cannot be reached; other errors pass through.
    """
    try:
        async with engine.begin() as connection:
            yield connection
    except (
        DBAPIError,
        PoolTimeout,
        OSError,
        TimeoutError,
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
    ) as error:
        if is_unavailable(error):
            raise StorageUnavailable(retry_after=1) from error
        raise
