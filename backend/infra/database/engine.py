"""The async engine, and the one place where driver errors become ours."""

import asyncio
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
from sqlalchemy.pool import QueuePool

from backend.errors import StorageUnavailable

POOL_SECONDS = 30.0
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
    """An engine whose every wait is bounded: pool ``POOL_SECONDS``, connect 5 s, a statement ``statement_timeout``."""
    engine = create_async_engine(
        url,
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_SECONDS,
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

    Raises :class:`StorageUnavailable` when Postgres cannot be reached, or when no connection was free for
    ``POOL_SECONDS``; other errors pass through.
    """
    with _ours():
        async with _access(engine).place(), engine.begin() as connection:
            yield connection


@asynccontextmanager
async def reading(engine: AsyncEngine) -> AsyncGenerator[AsyncConnection]:
    """A connection for statements that are each a transaction of their own: one round trip instead of three.

    Raises as :func:`transaction` does.
    """
    with _ours():
        access = _access(engine)
        async with access.place(), access.autocommit.connect() as connection:
            yield connection


class _Access:
    """The ways to an engine's connections.

    ``autocommit`` is the view of it without transactions, over the same pool; to make one costs as much as a read.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self.autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        pool = engine.pool
        self._places = asyncio.Semaphore(pool.size()) if isinstance(pool, QueuePool) else None

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """One of the pool's connections to come, in the order of asking.

        The pool itself lets who comes last take what is just given back, so that in a crowd some wait for seconds.
        """
        if self._places is None:
            yield
            return
        async with asyncio.timeout(POOL_SECONDS):
            await self._places.acquire()
        try:
            yield
        finally:
            self._places.release()


_accesses: WeakKeyDictionary[AsyncEngine, _Access] = WeakKeyDictionary()


def _access(engine: AsyncEngine) -> _Access:
    if engine not in _accesses:
        _accesses[engine] = _Access(engine)
    return _accesses[engine]
