"""Accounts on a real database."""

import asyncio

import pytest
from pydantic import SecretStr
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.auth.repository import AccountRepository
from backend.auth.service import AuthService
from backend.errors import Forbidden, NameTaken, Unauthorized
from backend.infra.database.engine import transaction
from tests.auth.conftest import INVITE, CountingHasher

PASSWORD = SecretStr("correct horse battery")
WRONG = SecretStr("wrong horse battery")


async def _roles(engine: AsyncEngine) -> list[str]:
    async with transaction(engine) as connection:
        return list((await connection.execute(text("select role from users order by role"))).scalars())


async def test_twenty_registrations_at_once_make_one_admin(service: AuthService, engine: AsyncEngine) -> None:
    signed_in = await asyncio.gather(*(service.register(f"user{n}", PASSWORD) for n in range(20)))
    assert await _roles(engine) == ["admin"] + ["user"] * 19
    assert sorted(one.principal.role for one in signed_in) == ["admin"] + ["user"] * 19


async def test_the_first_account_is_admin_whatever_it_asks(service: AuthService) -> None:
    first = await service.register("first", PASSWORD, role="user", admin_code=SecretStr("nonsense"))
    assert first.principal.role == "admin"


async def test_later_admins_need_the_invite_code(service: AuthService, engine: AsyncEngine) -> None:
    await service.register("first", PASSWORD)
    for code in (None, SecretStr(""), SecretStr(INVITE + "x"), SecretStr(INVITE.upper()), SecretStr("\ud800é")):
        with pytest.raises(Forbidden):
            await service.register("second", PASSWORD, role="admin", admin_code=code)
    assert await _roles(engine) == ["admin"]
    assert (
        await service.register("second", PASSWORD, role="admin", admin_code=SecretStr(INVITE))
    ).principal.role == "admin"
    assert (await service.register("third", PASSWORD, admin_code=SecretStr(INVITE))).principal.role == "user"


async def test_one_name_in_any_spelling_is_one_account(service: AuthService) -> None:
    first = await service.register("Ａlice", PASSWORD)
    assert first.principal.username == "alice"
    for spelling in ("alice", "ALICE", "  Alice ", "ａｌｉｃｅ"):
        with pytest.raises(NameTaken):
            await service.register(spelling, PASSWORD)
        assert (await service.login(spelling, PASSWORD)).principal == first.principal


async def test_the_same_name_at_once_is_taken_once(service: AuthService) -> None:
    results = await asyncio.gather(*(service.register("same", PASSWORD) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(result, NameTaken) for result in results) == 7


async def test_a_token_speaks_for_its_account(service: AuthService) -> None:
    signed_in = await service.register("alice", PASSWORD)
    assert await service.authenticate(signed_in.access_token) == signed_in.principal
    assert await service.authenticate((await service.login("alice", PASSWORD)).access_token) == signed_in.principal


async def test_j05_a_new_password_ends_every_earlier_token(service: AuthService) -> None:
    first = await service.register("alice", PASSWORD)
    second = await service.login("alice", PASSWORD)
    fresh = await service.change_password(first.principal, PASSWORD, WRONG)
    for token in (first.access_token, second.access_token):
        with pytest.raises(Unauthorized):
            await service.authenticate(token)
    assert await service.authenticate(fresh.access_token) == first.principal
    with pytest.raises(Unauthorized):
        await service.login("alice", PASSWORD)
    assert await service.login("alice", WRONG)


async def test_a_wrong_old_password_changes_nothing(service: AuthService) -> None:
    first = await service.register("alice", PASSWORD)
    with pytest.raises(Forbidden):
        await service.change_password(first.principal, WRONG, SecretStr("something else"))
    assert await service.authenticate(first.access_token) == first.principal


async def test_of_two_password_changes_at_once_one_wins(service: AuthService) -> None:
    first = await service.register("alice", PASSWORD)
    results = await asyncio.gather(
        *(service.change_password(first.principal, PASSWORD, SecretStr(f"new password {n}")) for n in range(2)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, Forbidden) for result in results) == 1


async def test_j05_a_disabled_or_deleted_account_has_no_tokens(
    service: AuthService, accounts: AccountRepository, engine: AsyncEngine
) -> None:
    first = await service.register("alice", PASSWORD)
    assert await accounts.set_disabled("alice", True)
    for attempt in (service.authenticate(first.access_token), service.login("alice", PASSWORD)):
        with pytest.raises(Unauthorized):
            await attempt
    assert await accounts.set_disabled("alice", False)
    with pytest.raises(Unauthorized):
        await service.authenticate(first.access_token)
    again = await service.login("alice", PASSWORD)
    async with transaction(engine) as connection:
        await connection.execute(text("delete from users"))
    with pytest.raises(Unauthorized):
        await service.authenticate(again.access_token)


async def test_j05_a_disabled_account_has_no_tokens_however_it_was_disabled(
    service: AuthService, engine: AsyncEngine
) -> None:
    first = await service.register("alice", PASSWORD)
    async with transaction(engine) as connection:
        await connection.execute(text("update users set disabled = true"))
    for attempt in (service.authenticate(first.access_token), service.login("alice", PASSWORD)):
        with pytest.raises(Unauthorized):
            await attempt
    with pytest.raises(Forbidden):
        await service.change_password(first.principal, PASSWORD, WRONG)


async def test_j08_every_failed_login_costs_one_verification(
    service: AuthService, accounts: AccountRepository, hasher: CountingHasher
) -> None:
    await service.register("alice", PASSWORD)
    await service.register("disabled", PASSWORD)
    await accounts.set_disabled("disabled", True)
    for name in ("alice", "nobody", "disabled", "no\u200bbody", "x" * 200):
        before = hasher.verified
        with pytest.raises(Unauthorized):
            await service.login(name, WRONG)
        assert hasher.verified == before + 1, name


async def test_the_password_is_nowhere_in_the_database(service: AuthService, engine: AsyncEngine) -> None:
    await service.register("alice", PASSWORD)
    async with transaction(engine) as connection:
        rows = (await connection.execute(text("select users::text from users"))).scalars().all()
    assert len(rows) == 1
    assert PASSWORD.get_secret_value() not in rows[0]
