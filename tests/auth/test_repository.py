"""The ``users`` table under parallel registrations."""

import asyncio

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.auth.repository import AccountRepository
from backend.infra.database.engine import transaction


async def test_twenty_parallel_inserts_have_one_first(accounts: AccountRepository, engine: AsyncEngine) -> None:
    for _ in range(5):
        made = await asyncio.gather(
            *(accounts.create(f"user{n}", "hash", lambda first: "admin" if first else "user") for n in range(20))
        )
        assert sorted(account.role for account in made) == ["admin"] + ["user"] * 19
        async with transaction(engine) as connection:
            await connection.execute(text("delete from users"))
