"""How many connections a PostgreSQL server has for us."""

from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

_ALLOWED = text("""
    select least(
        current_setting('max_connections')::int
            - current_setting('superuser_reserved_connections')::int
            - coalesce(current_setting('reserved_connections', true)::int, 0),
        (select nullif(datconnlimit, -1) from pg_database where datname = current_database()),
        (select nullif(rolconnlimit, -1) from pg_roles where rolname = current_user)
    )
""")
"""Limits that are not set are null, which ``least`` passes over."""


async def connections_allowed(url: URL) -> int:
    """The most connections that this account may hold to this database, whoever else has some now.

    Raises what the driver raises when the server cannot be reached.
    """
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            return (await connection.execute(_ALLOWED)).scalar_one()
    finally:
        await engine.dispose()
