"""The private directory that a server's Unix socket lies in.

A socket path may have 107 bytes (103 on macOS), so it does not lie in the data directory but in a short one below
the temporary directory, 0700, named after the data directory. The name is written down beside the data: a process
with another `TMPDIR` finds the same server.
"""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from backend.infra.embedded.account import Account
from backend.infra.embedded.errors import EmbeddedServiceError

_PATH_LIMIT_BYTES = 103
_LONGEST_FILE_BYTES = len("/.s.PGSQL.5432.lock")


class SocketDirectory:
    """The socket directory of one service on one data directory; `account` owns it, the caller by default."""

    def __init__(self, service: str, data_dir: Path, record: Path, account: Account | None) -> None:
        self._record = record
        self._account = account
        uid = account.uid if account else os.geteuid()
        key = f"{service}\0{uid}\0".encode() + os.fsencode(data_dir.resolve())
        name = f"citewire-{hashlib.sha256(key).hexdigest()[:16]}"
        self.path = self._recorded() or _short(Path(tempfile.gettempdir()), name)

    def create(self) -> None:
        """Make the directory if it is missing and write its name down.

        Raises `EmbeddedServiceError` for one that is a link, open to others or somebody else's.
        """
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            if not self._is_private(self.path):
                raise EmbeddedServiceError(
                    f"{self.path} is not a private directory of this user: remove it and start again"
                ) from None
        if self._account is not None:
            os.chown(self.path, self._account.uid, self._account.gid, follow_symlinks=False)
        self._record.write_text(str(self.path), encoding="utf-8", errors="surrogateescape")

    def clear(self) -> None:
        """Remove what a server that is gone left in the directory."""
        if self._is_private(self.path):
            for entry in self.path.iterdir():
                entry.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the directory with its content, and its record."""
        self.clear()
        if self._is_private(self.path):
            self.path.rmdir()
        self._record.unlink(missing_ok=True)

    def _recorded(self) -> Path | None:
        try:
            path = Path(self._record.read_text(encoding="utf-8", errors="surrogateescape"))
        except FileNotFoundError:
            return None
        # A half-written record names another place, maybe one that happens to be private: the name decides too.
        return path if path.name.startswith("citewire-") and self._is_private(path) else None

    def _is_private(self, path: Path) -> bool:
        try:
            state = path.lstat()
        except OSError:
            return False
        owners = {os.geteuid()} | ({self._account.uid} if self._account else set[int]())
        return stat.S_ISDIR(state.st_mode) and state.st_uid in owners and not state.st_mode & 0o077


def _short(base: Path, name: str) -> Path:
    longest = len(os.fsencode(base / name)) + _LONGEST_FILE_BYTES
    return (base if longest <= _PATH_LIMIT_BYTES else Path("/tmp")) / name
