"""Migrations and tables tell the same."""

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.infra.database.base import Base
from backend.infra.database.migrate import migrate


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
    assert context == "0002"
