"""Opaque cursors of the pages: a client gives back what it got and reads nothing into it."""

import base64
import binascii
from datetime import UTC, datetime
from uuid import UUID

from backend.chat.repository import SessionKey
from backend.errors import ValidationFailed


def _encode(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(cursor: str) -> str:
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError) as error:
        raise ValidationFailed from error


def encode_session_key(key: SessionKey | None) -> str | None:
    """The cursor for ``key``."""
    return None if key is None else _encode(f"{key.updated_at.isoformat()} {key.id}")


def decode_session_key(cursor: str | None) -> SessionKey | None:
    """The key of ``cursor``. Raises :class:`ValidationFailed` when it is none of ours."""
    if cursor is None:
        return None
    when, _, row_id = _decode(cursor).partition(" ")
    try:
        updated_at = datetime.fromisoformat(when)
        if updated_at.tzinfo is None:
            raise ValidationFailed
        return SessionKey(updated_at.astimezone(UTC), UUID(row_id))
    except (ValueError, OverflowError) as error:  # the latter: before or after all time, once in UTC
        raise ValidationFailed from error


def encode_seq(seq: int) -> str:
    """The cursor for messages below ``seq``."""
    return _encode(f"seq {seq}")


def decode_seq(cursor: str | None) -> int | None:
    """The ``seq`` of ``cursor``. Raises :class:`ValidationFailed` when it is none of ours."""
    if cursor is None:
        return None
    name, _, number = _decode(cursor).partition(" ")
    if name != "seq" or not number.isascii() or not number.isdigit() or len(number) > 18:
        raise ValidationFailed
    return int(number)
