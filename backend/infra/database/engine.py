"""The async engine, and the one place where driver errors become ours."""

import math
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import asyncpg
from sqlalchemy import URL, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, DisconnectionError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from backend.errors import StorageUnavailable

PING_AFTER_SECONDS = 30.0
"""A connection that was idle for longer is asked before it is used: what lies between may have forgotten it."""

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
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=30,
        connect_args={
            "timeout": 5,
            "command_timeout": statement_timeout,
            "server_settings": {"timezone": "UTC", "application_name": "citewire"},
        },
    )
    _check_on_checkout(engine)
    return engine


def _check_on_checkout(engine: AsyncEngine) -> None:
    """Replace a connection that was closed meanwhile, as ``pool_pre_ping`` does, without its three round trips a use:
    the driver knows of a closed socket, so that only a connection that was idle for long is asked."""
    dialect = engine.dialect

    def checked_in(_: Any, record: Any) -> None:
        record.info["idle_since"] = time.monotonic()

    def checked_out(connection: Any, record: Any, _: Any) -> None:
        if connection.driver_connection.is_closed():
            raise DisconnectionError
        if time.monotonic() - record.info.get("idle_since", math.inf) > PING_AFTER_SECONDS:
            try:
                dialect.do_ping(connection)
            except dialect.loaded_dbapi.Error as error:
                raise DisconnectionError from error

    event.listen(engine.sync_engine, "checkin", checked_in)
    event.listen(engine.sync_engine, "checkout", checked_out)


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


@contextmanager
def _ours() -> Generator[None]:
    """Driver errors that say "not now" as :class:`StorageUnavailable`; others pass through."""
    try:
        yield
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


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncGenerator[AsyncConnection]:
    """One transaction on one connection; commits at the end, rolls back on error.

    Raises :class:`StorageUnavailable` when Postgres cannot be reached; other errors pass through.
    """
    with _ours():
        async with engine.begin() as connection:
            yield connection


@asynccontextmanager
async def reading(engine: AsyncEngine) -> AsyncGenerator[AsyncConnection]:
    """A connection to read on, each statement for itself: it costs one round trip where a transaction costs three.

    Raises as :func:`transaction` does.
    """
    with _ours():
        async with _autocommit(engine).connect() as connection:
            yield connection


_autocommits: WeakKeyDictionary[AsyncEngine, AsyncEngine] = WeakKeyDictionary()


def _autocommit(engine: AsyncEngine) -> AsyncEngine:
    """The view of ``engine`` without transactions, over the same pool: made once, for that costs as much as a read."""
    if engine not in _autocommits:
        _autocommits[engine] = engine.execution_options(isolation_level="AUTOCOMMIT")
    return _autocommits[engine]
