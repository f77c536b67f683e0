"""The real servers, started once and shared by all workers of a test run; every test gets an empty database."""

import asyncio
import faulthandler
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from backend.infra.database.base import Base
from backend.infra.database.engine import create_engine
from backend.infra.database.migrate import migrate
from backend.infra.embedded.postgres import embedded_postgres
from backend.infra.embedded.valkey import embedded_valkey

_SERVICES = pytest.StashKey[Path]()


def open_directory(prefix: str) -> Path:
    """A new temporary directory that an unprivileged account may pass through.

    In a closed one the embedded PostgreSQL of a test run by root would put its data below /var/lib.
    """
    path = Path(tempfile.mkdtemp(prefix=prefix))
    path.chmod(0o711)
    return path


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process of a test that hangs beyond its time-out, so that the run tells its name.

    The time-out is an exception at whatever runs just then: a task may swallow it, and what is done after the test to
    clear up has none.
    """
    limit = float(item.config.getoption("--timeout") or item.config.getini("timeout"))
    watchdog = threading.Timer(2 * limit, _give_up, [item.nodeid])
    watchdog.daemon = True
    watchdog.start()
    try:
        return (yield)
    finally:
        watchdog.cancel()


def _give_up(nodeid: str) -> None:
    print(f"{nodeid} hangs", file=sys.__stderr__, flush=True)
    faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
    os._exit(1)


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", None)
    config.stash[_SERVICES] = Path(given["services"]) if given else open_directory("citewire-tests-")


def pytest_configure_node(node: object) -> None:
    node.workerinput["services"] = str(node.config.stash[_SERVICES])  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(config.stash[_SERVICES], ignore_errors=True)


@pytest.fixture(scope="session")
def services_dir(pytestconfig: pytest.Config) -> Path:
    """Where the shared servers of this test run keep their data."""
    return pytestconfig.stash[_SERVICES]


async def _execute(url: URL, *statements: str) -> None:
    engine = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        for statement in statements:
            await connection.execute(text(statement))
    await engine.dispose()


@pytest.fixture(scope="session")
def postgres_url(services_dir: Path) -> Iterator[URL]:
    """The shared PostgreSQL server."""
    with embedded_postgres(services_dir) as url:
        yield url


@pytest.fixture(scope="session")
def migrated_url(postgres_url: URL, worker_id: str) -> URL:
    """This worker's migrated database."""
    name = f"test_{worker_id}"
    asyncio.run(_execute(postgres_url, f'create database "{name}"'))
    url = postgres_url.set(database=name)
    asyncio.run(migrate(url))
    return url


@pytest.fixture
async def database_url(migrated_url: URL) -> AsyncIterator[URL]:
    """A migrated database without rows; emptied again afterwards."""
    yield migrated_url
    tables = ", ".join(f'"{table.name}"' for table in Base.metadata.sorted_tables)
    await _execute(migrated_url, f"truncate {tables} cascade")


@pytest.fixture
async def engine(database_url: URL) -> AsyncIterator[AsyncEngine]:
    """An engine of the product on the empty database."""
    engine = create_engine(database_url, pool_size=10)
    yield engine
    checked_out = engine.pool.checkedout()  # type: ignore[attr-defined]
    await engine.dispose()
    assert checked_out == 0, "a database connection was left checked out"


@pytest.fixture(scope="session")
def valkey_url(services_dir: Path, worker_id: str) -> Iterator[str]:
    """This worker's database of the shared Valkey server."""
    with embedded_valkey(services_dir) as url:
        number = int(worker_id.removeprefix("gw")) % 16 if worker_id != "master" else 0
        yield f"{url}?db={number}"


@pytest.fixture
async def redis_url(valkey_url: str) -> AsyncIterator[str]:
    """An empty cache."""
    yield valkey_url
    redis = Redis.from_url(valkey_url)
    await redis.flushdb()
    await redis.aclose()


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty data directory with a short path (socket paths are limited)."""
    path = open_directory("citewire-data-")
    yield path
    shutil.rmtree(path, ignore_errors=True)
