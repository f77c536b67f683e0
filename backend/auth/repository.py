"""The ``users`` table. One method is one transaction."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from sqlalchemy import Row, bindparam, delete, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from backend.errors import NameTaken
from backend.infra.database.base import Id
from backend.infra.database.engine import reading, transaction
from backend.infra.database.tables import ChatSession, Document, User
from backend.schemas.auth import Role

_REGISTER_LOCK = 0x0C17E_A07
"""Key of the advisory lock under which accounts are made, so that exactly one of them is the first."""
_COLUMNS = (User.id, User.username, User.role, User.token_version, User.disabled, User.password_hash)
_BY_ID = select(*_COLUMNS).where(User.id == bindparam("id"))


@dataclass(frozen=True, slots=True)
class Account:
    """A row of ``users``."""

    id: UUID
    username: str
    role: Role
    token_version: int
    disabled: bool
    password_hash: str


class AccountRepository:
    """Reads and writes accounts. Raises :class:`StorageUnavailable` when Postgres cannot be reached."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def create(self, username: str, password_hash: str, choose_role: Callable[[bool], Role]) -> Account:
        """A new account. ``choose_role(is_first)`` is asked inside the transaction and may raise.

        Raises :class:`NameTaken`.
        """
        async with transaction(self._engine) as connection:
            await connection.execute(select(func.pg_advisory_xact_lock(_REGISTER_LOCK)))
            role = choose_role(not await _any_account(connection))
            statement = (
                insert(User)
                .values(username=username, password_hash=password_hash, role=role)
                .on_conflict_do_nothing(index_elements=[User.username])
                .returning(*_COLUMNS)
            )
            row = (await connection.execute(statement)).one_or_none()
        if row is None:
            raise NameTaken
        return _account(row)

    async def by_username(self, username: str) -> Account | None:
        """The account with this normalized name."""
        async with reading(self._engine) as connection:
            row = (await connection.execute(select(*_COLUMNS).where(User.username == username))).one_or_none()
        return None if row is None else _account(row)

    async def by_id(self, user_id: UUID) -> Account | None:
        """The account with this id; one read on the primary key."""
        async with reading(self._engine) as connection:
            row = (await connection.execute(_BY_ID, {"id": user_id})).one_or_none()
        return None if row is None else _account(row)

    async def set_password(self, user_id: UUID, password_hash: str, *, old_hash: str) -> Account | None:
        """The account with the new password and the next token version; ``None`` if it no longer has ``old_hash``."""
        statement = (
            update(User)
            .where(User.id == user_id, User.password_hash == old_hash, User.disabled.is_(False))
            .values(password_hash=password_hash, token_version=User.token_version + 1)
            .returning(*_COLUMNS)
        )
        async with transaction(self._engine) as connection:
            row = (await connection.execute(statement)).one_or_none()
        return None if row is None else _account(row)

    async def set_disabled(self, username: str, disabled: bool) -> Account | None:
        """Disable or enable an account; either way its tokens end. ``None`` when there is no such account."""
        return await self._change(username, disabled=disabled)

    async def reset_password(self, username: str, password_hash: str) -> Account | None:
        """The account with a new password; its tokens end. ``None`` when there is no such account."""
        return await self._change(username, password_hash=password_hash)

    async def _change(self, username: str, **values: bool | str) -> Account | None:
        statement = (
            update(User)
            .where(User.username == username)
            .values(**values, token_version=User.token_version + 1)
            .returning(*_COLUMNS)
        )
        async with transaction(self._engine) as connection:
            row = (await connection.execute(statement)).one_or_none()
        return None if row is None else _account(row)

    async def delete_empty(self, user_id: UUID) -> bool:
        """Delete an account that owns neither sessions nor documents. False, with nothing done, when it owns some.

        Whoever adds either holds a lock of the account's row until its commit, so the check sees it.
        """
        owned = or_(
            exists().where(ChatSession.user_id == user_id),
            exists().where(Document.owner_id == user_id),
        )
        async with transaction(self._engine) as connection:
            await connection.execute(select(User.id).where(User.id == user_id).with_for_update())
            if (await connection.execute(select(owned))).scalar_one():
                return False
            await connection.execute(delete(User).where(User.id == user_id))
        return True

    async def count_admins(self) -> int:
        """Administrators who can sign in."""
        query = select(func.count()).where(User.role == "admin", User.disabled.is_(False))
        async with reading(self._engine) as connection:
            return (await connection.execute(query)).scalar_one()


async def _any_account(connection: AsyncConnection) -> bool:
    return bool((await connection.execute(select(exists(select(User.id))))).scalar_one())


def _account(row: Row[Id, str, str, int, bool, str]) -> Account:
    user_id, username, role, token_version, disabled, password_hash = row
    return Account(
        id=UUID(str(user_id)),
        username=username,
        role=cast(Role, role),
        token_version=token_version,
        disabled=disabled,
        password_hash=password_hash,
    )
