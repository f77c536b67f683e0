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
_PS_SECONDS = 30.0
_PROC = Path("/proc")
_PROC_WORKS = (_PROC / "self" / "cmdline").exists()  # Linux; elsewhere `ps` tells
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
    """The living processes of user `uid` whose command line contains the words `arguments`, lowest number first.

    A zombie has no command line and is not found.
    """
    table = _linux_processes if _PROC_WORKS else _posix_processes
    return sorted(pid for pid in table(arguments) if _user_of(pid) == uid)


def find_orphans(directory: Path, uid: int) -> list[int]:
    """The living processes of user `uid` that work in `directory` as `postgres: …`: sessions of a killed server.

    Only Linux tells; elsewhere they are left to notice by themselves.
    """
    candidates = _linux_processes("postgres:") if _PROC_WORKS else []
    return [pid for pid in candidates if _works_in(pid, directory) and _user_of(pid) == uid]


def end_processes(arguments: str, uid: int, steps: Sequence[tuple[signal.Signals, float]]) -> bool:
    """Send each signal of `steps` in turn and give it its seconds. True when no such process is left."""
    return end_found(lambda: find_processes(arguments, uid)[:1], steps)


def end_found(find: Callable[[], list[int]], steps: Sequence[tuple[signal.Signals, float]]) -> bool:
    """Send each signal of `steps` to what `find` finds and give it its seconds. True when it finds nothing more."""
    for number, seconds in steps:
        for pid in find():
            _signal(pid, number)
        if wait_until(lambda: not find(), seconds):
            break
    reap()
    return not find()


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


def _linux_processes(arguments: str) -> list[int]:
    found: list[int] = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile
            continue
        if f" {arguments} " in f" {' '.join(os.fsdecode(word) for word in words)} ":
            found.append(int(entry.name))
    return found


def _posix_processes(arguments: str) -> list[int]:
    rows = (line.strip().partition(" ") for line in _ps("-axww", "-o", "pid=,command=").splitlines())
    return [int(pid) for pid, _, command in rows if f" {arguments} " in f" {command} "]


def _user_of(pid: int) -> int | None:
    """The effective user of a process. Not the owner of its `/proc` entry, which may be root for other reasons."""
    try:
        if not _PROC_WORKS:
            return int(_ps("-o", "uid=", "-p", str(pid)))
        lines = (_PROC / str(pid) / "status").read_text().splitlines()
        return next(int(line.split()[2]) for line in lines if line.startswith("Uid:"))
    except (OSError, ValueError, StopIteration):  # gone meanwhile
        return None


def _works_in(pid: int, directory: Path) -> bool:
    try:
        return (_PROC / str(pid) / "cwd").readlink() == directory
    except OSError:
        return False


def _ps(*options: str) -> str:
    listed = subprocess.run(["ps", *options], capture_output=True, check=False, timeout=_PS_SECONDS)
    return listed.stdout.decode(errors="surrogateescape")


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
