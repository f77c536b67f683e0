"""As much of PostgreSQL's wire protocol as it takes to ask a server whether it is there, and to create a database.

Plain sockets, so that it works in any thread, with or without an event loop. Protocol 3.0, messages as in the
chapter "Frontend/Backend Protocol" of the PostgreSQL manual.
"""

import socket
import struct
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from backend.infra.embedded.errors import EmbeddedServiceError

READY = "00000"
CANNOT_CONNECT_NOW = "57P03"  # starting, recovering or shutting down
NO_SUCH_DATABASE = "3D000"
_DUPLICATE_DATABASE = "42P04"
_MESSAGE_LIMIT_BYTES = 1024 * 1024


def ask(socket_path: Path, *, user: str, database: str, timeout: float) -> str | None:
    """The SQLSTATE with which the server takes a connection (`READY` for success), `None` if nobody answers."""
    try:
        with _connection(socket_path, user, database, timeout) as (_, state):
            return state
    except (OSError, EOFError, ValueError):
        return None


def create_database(socket_path: Path, *, user: str, database: str, timeout: float) -> None:
    """Create `database`; one that exists is fine. Raises `EmbeddedServiceError` when it cannot be done."""
    query = f'CREATE DATABASE "{database}"'.encode() + b"\0"
    try:
        with _connection(socket_path, user, "postgres", timeout) as (connection, state):
            if state == READY:
                connection.send(b"Q", query)
                state = connection.read_state()
    except (OSError, EOFError, ValueError) as error:
        raise EmbeddedServiceError(f"PostgreSQL went away while creating its database: {error}") from error
    if state not in {READY, _DUPLICATE_DATABASE}:
        raise EmbeddedServiceError(f"PostgreSQL refused to create its database (SQLSTATE {state})")


class _Connection:
    def __init__(self, stream: socket.socket, timeout: float) -> None:
        self._stream = stream
        self._deadline = time.monotonic() + timeout

    def send(self, kind: bytes, body: bytes) -> None:
        self._stream.sendall(kind + struct.pack("!I", len(body) + 4) + body)

    def read_state(self) -> str:
        """Read up to ReadyForQuery, or to the error that ends the connection; the SQLSTATE of the answer."""
        state = READY
        while True:
            kind, body = self._read_message()
            if kind == b"E":
                fields = {field[:1]: field[1:] for field in body.split(b"\0") if field}
                state = fields.get(b"C", b"").decode("ascii")
                if fields.get(b"V", b"") == b"FATAL":
                    return state
            elif kind == b"Z":
                return state

    def _read_message(self) -> tuple[bytes, bytes]:
        kind = self._read(1)
        (length,) = struct.unpack("!I", self._read(4))
        if not 4 <= length <= _MESSAGE_LIMIT_BYTES:
            raise ValueError("not a PostgreSQL server")
        return kind, self._read(length - 4)

    def _read(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            self._stream.settimeout(max(0.001, self._deadline - time.monotonic()))
            part = self._stream.recv(size - len(received))
            if not part:
                raise EOFError("connection closed")
            received += part
        return received


@contextmanager
def _connection(path: Path, user: str, database: str, timeout: float) -> Generator[tuple[_Connection, str]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(timeout)
        stream.connect(str(path))
        connection = _Connection(stream, timeout)
        parameters = b"".join(
            part.encode() + b"\0" for part in ("user", user, "database", database, "client_encoding", "UTF8")
        )
        connection.send(b"", struct.pack("!I", 3 << 16) + parameters + b"\0")
        state = connection.read_state()
        yield connection, state
        if state == READY:
            connection.send(b"X", b"")
