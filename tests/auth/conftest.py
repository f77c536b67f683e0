"""The service on a real database."""

import secrets

import pytest
from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.auth.config import AuthConfig
from backend.auth.passwords import PasswordHasher
from backend.auth.repository import AccountRepository
from backend.auth.service import AuthService
from backend.auth.tokens import TokenCodec

INVITE = "invite-" + secrets.token_hex(8)


class CountingHasher(PasswordHasher):
    """Counts the verifications, the work an attacker could time."""

    def __init__(self) -> None:
        super().__init__()
        self.verified = 0
        inner = self._hash.verify

        def counted(password: str, encoded: str) -> bool:
            self.verified += 1
            return inner(password, encoded)

        self._hash.verify = counted  # type: ignore[method-assign]


@pytest.fixture
def secret() -> str:
    return secrets.token_urlsafe(48)


@pytest.fixture
def hasher() -> CountingHasher:
    return CountingHasher()


@pytest.fixture
def accounts(engine: AsyncEngine) -> AccountRepository:
    return AccountRepository(engine)


@pytest.fixture
def service(accounts: AccountRepository, hasher: CountingHasher, secret: str) -> AuthService:
    config = AuthConfig(admin_invite_code=SecretStr(INVITE))
    codec = TokenCodec(secret, expire_minutes=config.jwt_expire_minutes)
    return AuthService(accounts, hasher, codec, admin_invite_code=config.admin_invite_code)
