"""The key that signs tokens: generated in embedded mode, required and strong otherwise."""

import itertools
import math
import os
import secrets
from collections import Counter
from pathlib import Path

from pydantic import SecretStr

SECRET_FILE = "jwt_secret"
MIN_BYTES = 32
MIN_BITS = 96
_PLACEHOLDER_WORDS = (
    "change",
    "secret",
    "example",
    "placeholder",
    "password",
    "replace",
    "default",
    "citewire",
    "your-",
    "your_",
)
"""Every placeholder that a text of this project shows holds one of these; in a random key they are
unlikely beyond counting (so: no shorter words here)."""


def load_or_create_secret(data_dir: Path, configured: SecretStr | None, embedded: bool) -> str:
    """The signing key: ``configured`` if given, else (embedded only) the one in ``data_dir``, made on first use.

    Raises ``ValueError`` with one line that names ``JWT_SECRET_KEY`` when there is none or it is weak.
    """
    value = configured.get_secret_value().strip() if configured is not None else ""
    if value:
        return check_secret(value)
    if not embedded:
        raise ValueError("JWT_SECRET_KEY is required: set it to at least 32 random bytes (openssl rand -base64 48)")
    return _read_or_create(data_dir / SECRET_FILE)


def check_secret(value: str) -> str:
    """``value`` if it can sign tokens. Raises ``ValueError`` with the reason, never with the value."""
    if len(value.encode(errors="replace")) < MIN_BYTES or not value.isprintable():
        raise ValueError(f"JWT_SECRET_KEY must be at least {MIN_BYTES} random bytes of printable text")
    folded = value.casefold()
    if any(word in folded for word in _PLACEHOLDER_WORDS):
        raise ValueError("JWT_SECRET_KEY looks like a placeholder: use random bytes (openssl rand -base64 48)")
    if _is_repeated(value) or _is_sequence(value) or _bits(value) < MIN_BITS:
        raise ValueError("JWT_SECRET_KEY is too easy to guess: use random bytes (openssl rand -base64 48)")
    return value


def _bits(value: str) -> float:
    """Shannon's estimate for the whole of ``value``, in bits."""
    total = len(value)
    return -sum(count * math.log2(count / total) for count in Counter(value).values())


def _is_repeated(value: str) -> bool:
    return (value + value).find(value, 1) < len(value)


def _is_sequence(value: str) -> bool:
    steps = Counter(ord(after) - ord(before) for before, after in itertools.pairwise(value))
    return steps.most_common(1)[0][1] > len(value) // 2


def _read_or_create(path: Path) -> str:
    """The content of ``path``; made if absent. Of several processes at once one wins and all read the same."""
    try:
        if not path.exists():
            _create(path)
        if path.stat().st_mode & 0o077:
            path.chmod(0o600)
        value = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise ValueError(f"JWT_SECRET_KEY: {path} cannot be made or read ({error.strerror}); or set the key") from error
    if len(value) < MIN_BYTES:
        raise ValueError(f"JWT_SECRET_KEY: {path} is damaged; remove the file (everyone signs in anew) or set the key")
    return value


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(48))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # fails when another process was first; replacing would revoke its tokens
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)
