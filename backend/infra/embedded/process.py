"""Server processes: start one, find it again in the process table, end it.

A process is recognised by its command line and its user, never by a number in a file: numbers are reused, and files
are left behind by a killed server.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.infra.embedded.account import Account

LOG_LIMIT_BYTES = 4 * 1024 * 1024
POLL_SECONDS = 0.02
_TAIL_BYTES = 16 * 1024
_PROC = Path("/proc")
# Environment of a server: nothing of the caller's, where PGPORT or a locale would change what the server does.
SERVER_ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}


class ServerProcess(subprocess.Popen[bytes]):
    """A server that may outlive this process, so dropping the object is no mistake and warns of nothing."""

    def __del__(self) -> None:
        self.poll()


_started: list[ServerProcess] = []


def start_server(command: Sequence[str | Path], log: Path, account: Account | None) -> ServerProcess:
    """Start `command` in a session of its own (Ctrl-C does not reach it), both outputs appended to `log`."""
    reap()
    with open(log, "ab", opener=_private) as output:
        server = ServerProcess(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=SERVER_ENVIRONMENT,
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
        )
    _started.append(server)
    return server


def reap() -> None:
    """Collect the exit codes of servers that this process started and that ended since."""
    _started[:] = [server for server in _started if server.poll() is None]


def find_processes(arguments: str, uid: int) -> list[int]:
    """The living processes of user `uid` whose command line contains the words `arguments`, oldest number first.

    A zombie has no command line and is not found.
    """
    table = _linux_processes(uid) if (_PROC / "self" / "cmdline").exists() else _posix_processes(uid)
    return sorted(pid for pid, command in table if f" {arguments} " in f" {command} ")


def end_processes(arguments: str, uid: int, steps: Sequence[tuple[signal.Signals, float]]) -> bool:
    """Send each signal of `steps` in turn and give it its seconds. True when no such process is left."""
    for number, seconds in steps:
        for pid in find_processes(arguments, uid)[:1]:
            _signal(pid, number)
        if wait_until(lambda: not find_processes(arguments, uid), seconds):
            break
    reap()
    return not find_processes(arguments, uid)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask `condition` until it holds, `seconds` at most; its last answer."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def shorten_log(log: Path) -> None:
    """Empty a log that has grown beyond the limit. Only while no server writes to it."""
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        os.truncate(log, 0)


def log_size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


def last_log_line(log: Path, since: int) -> str:
    """The last telling line that was written behind byte `since`: a fatal one if there is one."""
    if not log.exists():
        return "no log"
    with log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - _TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if any(mark in line for mark in ("FATAL", "PANIC", "rror"))]
    telling = [line for line in telling if "the database system is" not in line]  # answers to our own question
    return (telling or lines or ["nothing in its log"])[-1]


def _linux_processes(uid: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if entry.stat().st_uid == uid:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                found.append((int(entry.name), " ".join(os.fsdecode(word) for word in words)))
        except OSError:  # gone meanwhile
            continue
    return found


def _posix_processes(uid: int) -> list[tuple[int, str]]:
    listing = subprocess.run(
        ["ps", "-axww", "-o", "uid=,pid=,command="], capture_output=True, check=True, timeout=30
    ).stdout.decode(errors="surrogateescape")
    rows = [line.split(None, 2) for line in listing.splitlines()]
    return [(int(row[1]), row[2]) for row in rows if len(row) == 3 and int(row[0]) == uid]


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
