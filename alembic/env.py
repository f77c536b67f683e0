"""Migrations: on the connection that ``serve`` gives, or standalone (``alembic upgrade head``)."""

import asyncio

from alembic import context
from sqlalchemy import URL, Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from backend.infra.database.engine import async_url
from backend.infra.database.tables import Base
from backend.infra.embedded.postgres import embedded_postgres
from backend.settings import load_settings


def run(connection: Connection) -> None:
    context.configure(connection=connection, target_metadata=Base.metadata, compare_server_default=True)
    with context.begin_transaction():
        context.run_migrations()


async def connect_and_run(url: URL) -> None:
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(run)
    await engine.dispose()


def standalone() -> None:
    settings = load_settings()
    if settings.database_url is not None:
        asyncio.run(connect_and_run(async_url(settings.database_url.get_secret_value())))
    else:
        with embedded_postgres(settings.data_dir) as url:
            asyncio.run(connect_and_run(url))


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    standalone()
