"""Migrations and tables tell the same."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from backend.infra.database.base import Base
from backend.infra.database.connections import connections_allowed
from backend.infra.database.engine import create_engine, transaction
from backend.infra.database.migrate import SchemaTooOld, check_schema, migrate, revisions, stored_revision
from tests.support.databases import own_database


async def test_migrated_database_has_the_declared_tables(engine: AsyncEngine) -> None:
    async with engine.connect() as connection:
        difference = await connection.run_sync(
            lambda sync: compare_metadata(MigrationContext.configure(sync), Base.metadata)
        )
    assert difference == []


async def test_migrating_again_changes_nothing(engine: AsyncEngine) -> None:
    await migrate(engine.url)
    async with engine.connect() as connection:
        context = await connection.run_sync(lambda sync: MigrationContext.configure(sync).get_current_revision())
    assert context == revisions()[-1]


async def stamp(engine: AsyncEngine, revision: str) -> None:
    async with transaction(engine) as connection:
        await connection.execute(text("update alembic_version set version_num = :it"), {"it": revision})


async def test_a_newer_schema_is_left_as_it_is_and_used(postgres_url: URL, worker_id: str) -> None:
    async with own_database(postgres_url, f"newer_{worker_id}") as url:
        engine = create_engine(url, pool_size=1)
        await check_schema(engine)
        await stamp(engine, "9999")
        await migrate(url)
        await check_schema(engine)
        assert await stored_revision(engine) == "9999"
        await engine.dispose()


async def test_an_older_schema_is_refused_by_one_line_that_says_what_to_do(postgres_url: URL, worker_id: str) -> None:
    async with own_database(postgres_url, f"older_{worker_id}") as url:
        engine = create_engine(url, pool_size=1)
        await stamp(engine, revisions()[0])
        with pytest.raises(
            SchemaTooOld, match=rf"schema {revisions()[0]}.*needs {revisions()[-1]}.*citewire serve"
        ) as caught:
            await check_schema(engine)
        assert "\n" not in str(caught.value)
        assert await stored_revision(engine) == revisions()[0]
        async with transaction(engine) as connection:
            await connection.execute(text("drop table alembic_version"))
        with pytest.raises(SchemaTooOld, match="schema none"):
            await check_schema(engine)
        await engine.dispose()


async def test_the_smallest_limit_of_connections_counts(postgres_url: URL, worker_id: str) -> None:
    name = f"limits_{worker_id}"
    async with own_database(postgres_url, name) as url:
        admin = create_async_engine(postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        async with admin.connect() as connection:
            reserved = int((await connection.execute(text("show superuser_reserved_connections"))).scalar_one())
            most = int((await connection.execute(text("show max_connections"))).scalar_one())
            assert await connections_allowed(url) == most - reserved
            await connection.execute(text(f'alter database "{name}" connection limit 7'))
        await admin.dispose()
        assert await connections_allowed(url) == 7
