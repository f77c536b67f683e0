"""Accounts and tokens on the wire, and who asks."""

import unicodedata
from dataclasses import dataclass
from typing import Annotated, Literal
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field, SecretStr

from backend.schemas.base import RequestSchema, StrictSchema

Role = Literal["admin", "user"]


@dataclass(frozen=True, slots=True)
class Principal:
    """The account behind a valid token; every query is bound to its ``id``."""

    id: UUID
    username: str
    role: Role


USERNAME_MAX = 64
PASSWORD_MIN, PASSWORD_MAX = 8, 1024
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Printable by their category, yet drawn as nothing: two names that look equal must not be two accounts."""


def fold_username(text: str) -> str:
    """``text`` in NFKC, case-folded and stripped: equal for all spellings of one name."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).strip()


def normalize_username(text: str) -> str:
    """The one stored form of a username: NFKC, stripped, case-folded, so ``Ａlice`` and ``alice`` are one account.

    Raises ``ValueError`` unless that form has 1 to 64 visible characters.
    """
    name = fold_username(text)
    if not 1 <= len(name) <= USERNAME_MAX:
        raise ValueError(f"must have 1 to {USERNAME_MAX} characters")
    if not name.isprintable() or any(char.isspace() or char in _INVISIBLE for char in name):
        raise ValueError("must consist of visible characters")
    return name


NewPassword = Annotated[SecretStr, Field(min_length=PASSWORD_MIN, max_length=PASSWORD_MAX)]
GivenPassword = Annotated[SecretStr, Field(min_length=1, max_length=PASSWORD_MAX)]


class _CredentialsSchema(RequestSchema):
    """A body with a secret in it: errors never repeat the input."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class RegisterRequest(_CredentialsSchema):
    """A new account. ``role: admin`` needs ``admin_code``, save for the first account of an install."""

    username: Annotated[str, AfterValidator(normalize_username)]
    password: NewPassword
    role: Role | None = None
    admin_code: Annotated[SecretStr, Field(max_length=PASSWORD_MAX)] | None = None


class LoginRequest(_CredentialsSchema):
    """Credentials. A name that no account can have is answered as an unknown one."""

    username: Annotated[str, Field(min_length=1, max_length=4 * USERNAME_MAX)]
    password: GivenPassword


class PasswordRequest(_CredentialsSchema):
    """A change of password; it revokes every token of the account."""

    old: GivenPassword
    new: NewPassword


class TokenResponse(StrictSchema):
    """A fresh access token."""

    access_token: str
    token_type: Literal["bearer"] = "bearer"
    username: str
    role: Role


class MeResponse(StrictSchema):
    """The account behind the token."""

    username: str
    role: Role
