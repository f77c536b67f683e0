"""Bring a database to the newest schema; run by ``serve`` before anything else uses it.

A database that is newer than this installation is left as it is: a migration only adds, so that servers of the release
before go on while the first one of the next has migrated already.
"""

import asyncio
from pathlib import Path

import alembic.command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from backend.log import get_logger

ROOT = Path(__file__).resolve().parents[3]
_LOCK = 0x_C17E_11AE
"""Advisory lock key: several workers may start at once."""
_log = get_logger(__name__)


class SchemaTooOld(ValueError):
    """The database is older than this installation; the text says what to do."""


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(ROOT / "alembic").replace("%", "%%"))
    return config


def _upgrade(connection: Connection) -> None:
    connection.execute(text("select pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    stored = MigrationContext.configure(connection).get_current_revision()
    if stored is not None and stored not in revisions():
        _log.warning("schema_is_newer", stored=stored)
        return
    config = _config()
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, "head")


async def migrate(url: URL) -> None:
    """Apply every migration that ``url``'s database has not seen, all in one transaction; none to a newer one."""
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


async def check_schema(engine: AsyncEngine) -> None:
    """Raises :class:`SchemaTooOld` for a database that :func:`migrate` would change; changes nothing itself."""
    stored = await stored_revision(engine)
    known = await asyncio.to_thread(revisions)
    if stored == known[-1]:
        return
    if stored is None or stored in known:
        text = (
            f"DATABASE_URL: the database has schema {stored or 'none'}, this release needs {known[-1]}; "
            "start it by `citewire serve`, which brings the database to it"
        )
        _log.error("schema_too_old", detail=text)
        raise SchemaTooOld(text)
    _log.warning("schema_is_newer", stored=stored)
