"""Sign up, sign in, and who is behind a token."""

import hmac
from dataclasses import dataclass
from uuid import UUID

from pydantic import SecretStr
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.auth.config import AuthConfig
from backend.auth.passwords import PasswordHasher
from backend.auth.repository import Account, AccountRepository
from backend.auth.tokens import TokenCodec
from backend.errors import Forbidden, NotFound, Unauthorized
from backend.schemas.auth import Principal, Role, fold_username, normalize_username


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A fresh token and whom it speaks for."""

    access_token: str
    principal: Principal


class AuthService:
    """The rules of accounts. Usernames are unique in their normalized form (:func:`normalize_username`)."""

    def __init__(
        self,
        accounts: AccountRepository,
        hasher: PasswordHasher,
        tokens: TokenCodec,
        *,
        admin_invite_code: SecretStr | None = None,
    ) -> None:
        self._accounts = accounts
        self._hasher = hasher
        self._tokens = tokens
        self._invite_code = admin_invite_code

    async def register(
        self, username: str, password: SecretStr, *, role: Role | None = None, admin_code: SecretStr | None = None
    ) -> SignedIn:
        """A new account, signed in. The first one is admin whatever it asks; later admins need the invite code.

        Raises ``ValueError`` for an impossible name, :class:`Forbidden`, :class:`NameTaken`.
        """
        invited = self._is_invited(admin_code)

        def choose_role(is_first: bool) -> Role:
            if is_first:
                return "admin"
            if role == "admin" and not invited:
                raise Forbidden
            return role or "user"

        password_hash = await self._hasher.hash(password.get_secret_value())
        return self._sign_in(await self._accounts.create(normalize_username(username), password_hash, choose_role))

    async def login(self, username: str, password: SecretStr) -> SignedIn:
        """A token for right credentials.

        Raises :class:`Unauthorized` for an unknown name, a wrong password and a disabled account, after the same work.
        """
        account = await self._find(username)
        matches = await self._hasher.verify(password.get_secret_value(), account.password_hash if account else None)
        if account is None or account.disabled or not matches:
            raise Unauthorized
        return self._sign_in(account)

    async def authenticate(self, token: str) -> Principal:
        """Who asks. The account is read each time, so a disabled account or a new password ends its tokens at once.

        Raises :class:`Unauthorized`.
        """
        claims = self._tokens.read(token)
        account = await self._accounts.by_id(claims.user_id)
        if account is None or account.disabled or account.token_version != claims.version:
            raise Unauthorized
        return _principal(account)

    async def change_password(self, principal: Principal, old: SecretStr, new: SecretStr) -> SignedIn:
        """A new password; every earlier token ends, a fresh one is returned.

        Raises :class:`Forbidden` for a wrong old password (the token is fine, so not 401).
        """
        account = await self._accounts.by_id(principal.id)
        matches = await self._hasher.verify(old.get_secret_value(), account.password_hash if account else None)
        if account is None or not matches:
            raise Forbidden
        password_hash = await self._hasher.hash(new.get_secret_value())
        changed = await self._accounts.set_password(principal.id, password_hash, old_hash=account.password_hash)
        if changed is None:
            raise Forbidden
        return self._sign_in(changed)

    # --- for the operator, who needs no token ---

    async def add(self, username: str, password: SecretStr, role: Role) -> Principal:
        """A new account with any role; the first one of an install is admin all the same.

        Raises ``ValueError`` for an impossible name, :class:`NameTaken`.
        """
        password_hash = await self._hasher.hash(password.get_secret_value())

        def choose_role(is_first: bool) -> Role:
            return "admin" if is_first else role

        return _principal(await self._accounts.create(normalize_username(username), password_hash, choose_role))

    async def find(self, username: str) -> Principal:
        """The account of that name, disabled or not. Raises :class:`NotFound`."""
        return _found(await self._find(username))

    async def set_disabled(self, username: str, disabled: bool) -> Principal:
        """Disable or enable an account; either way its tokens end. Raises :class:`NotFound`."""
        return _found(await self._accounts.set_disabled(fold_username(username), disabled))

    async def reset_password(self, username: str, password: SecretStr) -> Principal:
        """A new password without the old one; every token of the account ends. Raises :class:`NotFound`."""
        password_hash = await self._hasher.hash(password.get_secret_value())
        return _found(await self._accounts.reset_password(fold_username(username), password_hash))

    async def delete_empty(self, user_id: UUID) -> bool:
        """See :meth:`AccountRepository.delete_empty`."""
        return await self._accounts.delete_empty(user_id)

    async def has_admin(self) -> bool:
        """Whether any administrator can sign in."""
        return await self._accounts.count_admins() > 0

    async def _find(self, username: str) -> Account | None:
        try:
            name = normalize_username(username)
        except ValueError:
            return None
        return await self._accounts.by_username(name)

    def _is_invited(self, code: SecretStr | None) -> bool:
        if self._invite_code is None or code is None:
            return False
        given, wanted = (value.get_secret_value().encode(errors="surrogatepass") for value in (code, self._invite_code))
        return hmac.compare_digest(given, wanted)

    def _sign_in(self, account: Account) -> SignedIn:
        return SignedIn(self._tokens.issue(account.id, account.token_version), _principal(account))


def _principal(account: Account) -> Principal:
    return Principal(id=account.id, username=account.username, role=account.role)


def _found(account: Account | None) -> Principal:
    if account is None:
        raise NotFound
    return _principal(account)


def create_auth_service(engine: AsyncEngine, config: AuthConfig, secret: str) -> AuthService:
    """The service over ``engine`` with tokens signed by ``secret`` (:func:`load_or_create_secret`)."""
    return AuthService(
        AccountRepository(engine),
        PasswordHasher(),
        TokenCodec(secret, expire_minutes=config.jwt_expire_minutes),
        admin_invite_code=config.admin_invite_code,
    )
