"""Bring a database to the newest schema; run by ``serve`` before anything else uses it."""

from pathlib import Path

import alembic.command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

ROOT = Path(__file__).resolve().parents[3]
_LOCK = 0x_C17E_11AE
"""Advisory lock key: several workers may start at once."""


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(ROOT / "alembic").replace("%", "%%"))
    return config


def _upgrade(connection: Connection) -> None:
    connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    config = _config()
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, "head")


async def migrate(url: URL) -> None:
    """Apply every migration that ``url``'s database has not seen, all in one transaction."""
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


def revisions() -> list[str]:
    """Every schema revision of this installation, oldest first. Reads files."""
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()][::-1]


async def stored_revision(engine: AsyncEngine) -> str | None:
    """The revision a database is at; ``None`` for one that was never migrated."""
    async with engine.connect() as connection:
        context = await connection.run_sync(MigrationContext.configure)
        return await connection.run_sync(lambda _: context.get_current_revision())
