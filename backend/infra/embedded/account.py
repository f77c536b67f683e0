"""The unprivileged account that PostgreSQL needs when root starts it, and what that account can reach."""

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from backend.infra.embedded.errors import EmbeddedServiceError

_CANDIDATES = ("nobody", "postgres", "daemon", "www-data")
_CHECK_SECONDS = 30.0


@dataclass(frozen=True)
class Account:
    """A user and group that a server runs as."""

    uid: int
    gid: int

    @property
    def name(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"

    def can_run(self, *command: str | Path) -> bool:
        """Whether `command` starts and succeeds as this account."""
        try:
            finished = subprocess.run(
                [str(part) for part in command],
                capture_output=True,
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={"LC_ALL": "C"},
                user=self.uid,
                group=self.gid,
                extra_groups=[],
                timeout=_CHECK_SECONDS,
            )
        except (PermissionError, FileNotFoundError):
            return False
        return finished.returncode == 0

    def can_enter(self, directory: Path) -> bool:
        """Whether every directory down to `directory`, itself included, lets this account through."""
        return self.can_run("/bin/sh", "-c", 'test -d "$1/."', "sh", directory)


def account_for(data: Path) -> Account | None:
    """Who the server on `data` runs as: `None` (the caller) unless root, which may not run it itself.

    Existing data keep their owner. Raises `EmbeddedServiceError` for data of another user, and for root without any
    unprivileged account.
    """
    owner = _owner(data)
    if os.geteuid() != 0:
        if owner is not None and owner.uid != os.geteuid():
            raise EmbeddedServiceError(
                f"{data} belongs to {owner.name}, so another user or root made it: start as that user, "
                "or set DATA_DIR to a directory of your own"
            )
        return None
    return owner if owner is not None and owner.uid != 0 else _unprivileged()


def _owner(data: Path) -> Account | None:
    try:
        state = data.stat()
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise EmbeddedServiceError(
            f"{data} is closed to this user: start as the user who made it, or set DATA_DIR to a directory of your own"
        ) from error
    return Account(state.st_uid, state.st_gid)


def _unprivileged() -> Account:
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        account = Account(entry.pw_uid, entry.pw_gid)
        if account.uid != 0 and account.can_run("/bin/sh", "-c", ":"):
            return account
    raise EmbeddedServiceError(
        "PostgreSQL does not run as root and no unprivileged account is usable here: start as another user, "
        "or set DATABASE_URL"
    )
