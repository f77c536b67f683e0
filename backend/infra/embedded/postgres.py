"""PostgreSQL from the binaries of a wheel: start, adopt, repair, share, stop."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL

from backend.infra.embedded import pgwire
from backend.infra.embedded.account import Account, account_for
from backend.infra.embedded.errors import EmbeddedServiceError, explained
from backend.infra.embedded.lock import shared_server
from backend.infra.embedded.placement import (
    POSTGRES_MAJOR,
    PUBLIC_ROOT,
    data_location,
    postgres_install,
    program_location,
)
from backend.infra.embedded.process import (
    POLL_SECONDS,
    SERVER_ENVIRONMENT,
    ServerProcess,
    end_found,
    end_processes,
    find_orphans,
    find_processes,
    last_log_line,
    log_size,
    shorten_log,
    start_server,
)
from backend.infra.embedded.sockets import SocketDirectory

USER = DATABASE = "citewire"
_SOCKET = ".s.PGSQL.5432"
_ASK_SECONDS = 5.0
_INITDB_SECONDS = 300.0
_ORPHAN_SECONDS = 10.0
_CREATE_DATABASE_SECONDS = 60.0
_SETTLE_SECONDS = 3.0  # a server has its pid file and its socket long before
_RETRY_SECONDS = 0.2
# Fast shutdown, which ends sessions and writes a checkpoint, then immediate shutdown, which recovers at the next start.
_STOP = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 15.0))
_END_ORPHANS = ((signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Statements and error details carry what users wrote; a deleted conversation must not live on in a log.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}


@contextmanager
def embedded_postgres(
    data_dir: Path,
    *,
    start_timeout: float = 60.0,
    install: Path | None = None,
    public_root: Path = PUBLIC_ROOT,
) -> Generator[URL]:
    """Run PostgreSQL on `data_dir/postgres` for the length of the block; yields the URL of its database.

    A server that runs on these data already is used, whoever started it; the last user stops it. Blocking: call it in
    a thread. `start_timeout` in seconds. `install` (a directory with `bin`, `lib`, `share`) replaces the wheel's
    binaries; `public_root` is where root keeps what its unprivileged account could not reach. Raises
    `EmbeddedServiceError`, one line for the operator, when the server cannot be had.
    """
    with explained("PostgreSQL"):
        server = _Postgres.prepare(data_dir, install or postgres_install(), public_root, start_timeout)
    with shared_server(
        server.data.parent, "postgres", start=server.start, stop=server.stop, start_timeout=start_timeout
    ):
        yield server.url


class _Postgres:
    """One PostgreSQL on one data directory. `start` and `stop` expect to be alone (see `lock.py`)."""

    def __init__(
        self, data_dir: Path, data: Path, install: Path, account: Account | None, start_timeout: float
    ) -> None:
        self.data = data
        self._bin = install / "bin"
        self._account = account
        self._uid = account.uid if account else os.geteuid()
        self._log = data_dir / "postgres.log"
        self._start_timeout = start_timeout
        self._arguments = f"-D {data}"
        self._sockets = SocketDirectory("postgres", data, data.with_name("postgres.socket"), account)

    @classmethod
    def prepare(cls, data_dir: Path, install: Path, public_root: Path, start_timeout: float) -> "_Postgres":
        """Settle who runs the server and where its files are, before anything is started."""
        data_dir.mkdir(parents=True, exist_ok=True)
        data_dir = data_dir.resolve()
        account = account_for(data_dir / "postgres")
        data = data_location(data_dir, account, public_root)
        return cls(data_dir, data, program_location(install, account, public_root), account, start_timeout)

    @property
    def url(self) -> URL:
        return URL.create(
            "postgresql+asyncpg", username=USER, database=DATABASE, query={"host": str(self._sockets.path)}
        )

    def start(self) -> None:
        """Adopt the server that runs, else clear away what a dead one left, and start one."""
        if not self._adopt(time.monotonic() + self._start_timeout):
            self._initialise()
            self._clear_stale()
            self._launch(time.monotonic() + self._start_timeout)
        if self._ask(DATABASE) == pgwire.NO_SUCH_DATABASE:
            pgwire.create_database(self._socket, user=USER, database=DATABASE, timeout=_CREATE_DATABASE_SECONDS)

    def stop(self) -> None:
        if not end_processes(self._arguments, self._uid, _STOP):
            raise EmbeddedServiceError(f"PostgreSQL on {self.data} does not stop; see {self._log}")
        self._sockets.remove()

    @property
    def _socket(self) -> Path:
        return self._sockets.path / _SOCKET

    def _ask(self, database: str = "postgres") -> str | None:
        return pgwire.ask(self._socket, user=USER, database=database, timeout=_ASK_SECONDS)

    def _adopt(self, deadline: float) -> bool:
        """Whether a server on these data answers. One that lives and is silent gets until `deadline`.

        One without its pid file (it would stop by itself within a minute) or without its socket is stopped.
        """
        patience = time.monotonic() + _SETTLE_SECONDS
        while running := find_processes(self._arguments, self._uid):
            state = self._ask()
            whole = self._pid_in_file() in running and self._socket.exists()
            if not whole and (state == pgwire.READY or time.monotonic() > patience):
                self.stop()
                return False
            if state not in {None, pgwire.CANNOT_CONNECT_NOW}:
                return True
            if time.monotonic() > deadline:
                raise self._not_ready(0)
            time.sleep(POLL_SECONDS)
        return False

    def _pid_in_file(self) -> int | None:
        """The number in the first line of `postmaster.pid`, `None` if there is no complete file."""
        try:
            lines = (self.data / "postmaster.pid").read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return None
        first = lines[0].strip() if len(lines) >= 6 else ""
        return int(first) if first.isdecimal() else None

    def _initialise(self) -> None:
        """Make the database files, complete or not at all: in a sibling directory that is renamed at the end."""
        version = self.data / "PG_VERSION"
        if version.exists():
            found = version.read_text().strip()
            if found != POSTGRES_MAJOR:
                raise EmbeddedServiceError(
                    f"{self.data} was made by PostgreSQL {found}, this is {POSTGRES_MAJOR}: dump it with the old "
                    "version and restore it into a new DATA_DIR"
                )
            return
        if self.data.exists() and any(self.data.iterdir()):
            raise EmbeddedServiceError(f"{self.data} is not empty and holds no database: move it away")
        part = self.data.with_name(f"{self.data.name}.part")
        end_processes(f"-D {part}", self._uid, ((signal.SIGKILL, 10.0),))
        _remove_unfinished(part)
        part.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(part, self._account.uid, self._account.gid)
        self._run_initdb(part)
        part.rename(self.data)

    def _run_initdb(self, part: Path) -> None:
        command = [self._bin / "initdb", "-D", part, "-A", "trust", "--locale=C", "--encoding=UTF8", "-U", USER]
        try:
            finished = subprocess.run(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=SERVER_ENVIRONMENT,
                start_new_session=True,
                timeout=_INITDB_SECONDS,
                user=self._account.uid if self._account else None,
                group=self._account.gid if self._account else None,
                extra_groups=[] if self._account else None,
            )
        except subprocess.TimeoutExpired as error:
            raise EmbeddedServiceError(f"initdb did not finish within {_INITDB_SECONDS:.0f} s") from error
        if finished.returncode != 0:
            said = [line for line in finished.stdout.decode(errors="replace").splitlines() if "error" in line]
            raise EmbeddedServiceError(f"the database could not be made: {said[0] if said else 'initdb failed'}")

    def _clear_stale(self) -> None:
        """Remove what a dead server left and the next would stumble over. No server lives on these data.

        Sessions of a killed server may go on with a long query and hold its memory; they are ended. A pid file that is
        whole and names nobody stays: PostgreSQL reads it to find such orphans where we cannot.
        """
        end_found(lambda: find_orphans(self.data, self._uid), _END_ORPHANS)
        pid = self._pid_in_file()
        if pid is None or _is_alive(pid):
            (self.data / "postmaster.pid").unlink(missing_ok=True)
        self._sockets.clear()

    def _launch(self, deadline: float) -> None:
        self._sockets.create()
        shorten_log(self._log)
        settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = [self._bin / "postgres", "-D", self.data, "-k", self._sockets.path, *settings]
        while True:
            written = log_size(self._log)
            child = start_server(command, self._log, self._account)
            if self._becomes_ready(child, deadline, written):
                return
            reason = last_log_line(self._log, written)
            # Sessions of a killed server hold its memory until they notice, which takes them a moment.
            if "shared memory block" not in reason or time.monotonic() > deadline:
                self._sockets.remove()
                raise EmbeddedServiceError(f"PostgreSQL did not start: {reason}")
            time.sleep(_RETRY_SECONDS)

    def _becomes_ready(self, child: ServerProcess, deadline: float, written: int) -> bool:
        """True when it takes connections, false when it ended.

        At the deadline `EmbeddedServiceError`: a server that recovers is left to finish, a mute one is stopped.
        """
        while child.poll() is None:
            state = self._ask()
            if state not in {None, pgwire.CANNOT_CONNECT_NOW}:
                return True
            if time.monotonic() > deadline:
                if state is None:
                    self.stop()
                raise self._not_ready(written)
            time.sleep(POLL_SECONDS)
        return False

    def _not_ready(self, written: int) -> EmbeddedServiceError:
        return EmbeddedServiceError(
            f"PostgreSQL on {self.data} was not ready within {self._start_timeout:.0f} s, start again to go on "
            f"waiting: {last_log_line(self._log, written)}"
        )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _remove_unfinished(part: Path) -> None:
    """Remove what a killed `initdb` made. Its own child names no directory and may write for another moment."""
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while part.exists():
        try:
            shutil.rmtree(part)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
