"""Accounts and tokens on the wire, and who asks."""

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

Role = Literal["admin", "user"]


@dataclass(frozen=True, slots=True)
class Principal:
    """The account behind a valid token; every query is bound to its ``id``."""

    id: UUID
    username: str
    role: Role
