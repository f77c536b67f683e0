"""Access tokens: JWT, HS256 and nothing else, every claim required and checked (RFC 8725)."""

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import jwt

from backend.errors import Unauthorized

ALGORITHM = "HS256"
ISSUER = "citewire"
MAX_TOKEN_CHARS = 1024
"""Ours have about 300; what is longer is refused before anything is decoded."""
_FORM = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_CLAIMS = ("sub", "ver", "iat", "exp", "iss", "typ")


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """What a valid token says: the account and the version it had when the token was made."""

    user_id: UUID
    version: int


class TokenCodec:
    """Makes and reads access tokens signed with ``secret``, valid for ``expire_minutes``."""

    def __init__(
        self, secret: str, *, expire_minutes: int, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._secret = secret
        self._lifetime = timedelta(minutes=expire_minutes)
        self._now = now

    def issue(self, user_id: UUID, version: int) -> str:
        """A token for the account at its current ``version``."""
        now = self._now()
        claims = {
            "sub": str(user_id),
            "ver": version,
            "iat": int(now.timestamp()),
            "exp": int((now + self._lifetime).timestamp()),
            "iss": ISSUER,
            "typ": "access",
        }
        return jwt.encode(claims, self._secret, algorithm=ALGORITHM)  # pyright: ignore[reportUnknownMemberType]  # optional key types

    def read(self, token: str) -> TokenClaims:
        """The claims of ``token``. Raises :class:`Unauthorized`, whatever is wrong with it."""
        if len(token) > MAX_TOKEN_CHARS or _FORM.fullmatch(token) is None:
            raise Unauthorized
        try:
            jwt.decode(  # pyright: ignore[reportUnknownMemberType]  # optional key types
                token,
                self._secret,
                algorithms=[ALGORITHM],
                issuer=ISSUER,
                options={"require": list(_CLAIMS)},
            )
            header, payload, _ = token.split(".")
            return _claims(_strict_json(header), _strict_json(payload))
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise Unauthorized from None


def _claims(header: dict[str, Any], payload: dict[str, Any]) -> TokenClaims:
    """The claims, if header and payload hold exactly what :meth:`TokenCodec.issue` writes, in the same types."""
    if header != {"alg": ALGORITHM, "typ": "JWT"} or set(payload) != set(_CLAIMS) or payload["typ"] != "access":
        raise ValueError("not an access token of ours")
    if any(type(payload[name]) is not int for name in ("ver", "iat", "exp")):
        raise ValueError("a number is not one")
    return TokenClaims(user_id=UUID(payload["sub"]), version=payload["ver"])


def _strict_json(segment: str) -> dict[str, Any]:
    """The object of a base64url ``segment``. A repeated key is refused: two readers could see two values."""
    raw = base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
    value = json.loads(raw, object_pairs_hook=_unique)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value  # pyright: ignore[reportUnknownVariableType]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key is repeated")
    return value
