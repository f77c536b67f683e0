"""What a server refuses to start with, in one line, and what it starts with all the same."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from pydantic import SecretStr
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from backend.app import services
from backend.infra.database.migrate import revisions
from backend.settings import Settings
from tests.acceptance.rack import Rack, rack
from tests.support.fake_llm import text as says
from tests.support.server import ServerProcess


@pytest_asyncio.fixture
async def at(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    async with rack(postgres_url, valkey_url, f"start_{worker_id}") as made:
        yield made


async def stamp(url: URL, revision: str) -> None:
    """Say that the database is at another schema."""
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.execute(text("update alembic_version set version_num = :it"), {"it": revision})
    await engine.dispose()


async def refusal(server: ServerProcess) -> str:
    """The last line of a server that does not start."""
    await server.start(wait=False)
    assert await server.wait() == 1
    lines = server.logs().strip().splitlines()
    assert not any("Traceback" in line for line in lines)
    return lines[-1]


async def test_an_older_release_goes_on_where_the_next_one_has_migrated(at: Rack) -> None:
    await at.server.sigterm()
    await stamp(at.database, "9999")
    await at.server.start()
    at.llm.script(says("Hello."))
    async with at.user() as alice:
        assert (await alice.ask()).text == "Hello."
    await at.check(turns=1)


async def test_a_worker_that_does_not_migrate_refuses_an_older_schema(at: Rack) -> None:
    await at.server.sigterm()
    await stamp(at.database, revisions()[0])
    given = {name.lower(): value for name, value in at.server.env.items() if name.lower() in Settings.model_fields}
    settings = Settings(_env_file=None, **{**given, "database_url": SecretStr(given["database_url"])})  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=f"schema {revisions()[0]}"):
        async with services(settings, migrated=True):
            pass


async def test_more_connections_than_postgresql_has_are_refused_by_name(at: Rack) -> None:
    await at.server.sigterm()
    at.server.env |= {"WORKERS": "4", "DATABASE_POOL_SIZE": "30"}
    line = await refusal(at.server)
    assert "DATABASE_POOL_SIZE, WORKERS: 4 x 30 = 120 connections, and PostgreSQL allows 97" in line
