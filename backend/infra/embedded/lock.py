"""Who may start and stop a server that several processes share.

Two lock files for each service: `<name>.users` is held shared by every user for as long as it uses the server, and
`<name>.lock` is held exclusively while somebody decides to start or stop it. The kernel frees both when a process
dies, so a killed user never counts. Two files, because `flock` cannot turn a shared lock into an exclusive one
atomically.
"""

import fcntl
import os
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path

from backend.infra.embedded.errors import EmbeddedServiceError, explained

_STOP_SECONDS = 90.0  # more than the longest stop of a server
_POLL_SECONDS = 0.02


class ServerLock:
    """The pair of locks of one service below `directory`. Threads and processes count alike.

    Both files stay open from the start, so leaving works when the directory has been removed meanwhile.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._name = name
        self._decision = _open(directory / f"{name}.lock")
        try:
            self._users = _open(directory / f"{name}.users")
        except BaseException:
            os.close(self._decision)
            raise

    def close(self) -> None:
        os.close(self._users)
        os.close(self._decision)

    @contextmanager
    def deciding(self, timeout: float) -> Generator[None]:
        """Alone in starting and stopping; `EmbeddedServiceError` if another one decides for `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not _try_lock(self._decision, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise EmbeddedServiceError(
                    f"another process has been starting or stopping the embedded {self._name} for {timeout:.0f} s"
                )
            time.sleep(_POLL_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(self._decision, fcntl.LOCK_UN)

    def join(self) -> None:
        """Count as a user. Only while deciding."""
        _try_lock(self._users, fcntl.LOCK_SH)  # nobody holds it exclusively now

    def is_last(self) -> bool:
        """Whether no other user is left. Only while deciding, and before `leave`."""
        return _try_lock(self._users, fcntl.LOCK_EX)

    def leave(self) -> None:
        """No longer count as a user. Only while deciding."""
        fcntl.flock(self._users, fcntl.LOCK_UN)


@contextmanager
def shared_server(
    directory: Path, name: str, *, start: Callable[[], None], stop: Callable[[], None], start_timeout: float
) -> Generator[None]:
    """Use the server `name` for the length of the block.

    `start` finds or starts the server and is called with nobody else deciding; `stop` is called by the last user. An
    `EmbeddedServiceError` of `start` has left behind what it wants to leave; anything else (Ctrl-C) is tidied up.
    """
    with explained(name):
        lock = ServerLock(directory, name)
    with closing(lock):
        with lock.deciding(2 * start_timeout + _STOP_SECONDS):  # adopt, stop and start of another one
            lock.join()
            _start(lock, name, start, stop)
        try:
            yield
        finally:
            _leave(lock, stop)


def _start(lock: ServerLock, name: str, start: Callable[[], None], stop: Callable[[], None]) -> None:
    try:
        with explained(name):
            start()
    except EmbeddedServiceError:
        lock.leave()
        raise
    except BaseException:
        if lock.is_last():
            stop()
        lock.leave()
        raise


def _leave(lock: ServerLock, stop: Callable[[], None]) -> None:
    with lock.deciding(_STOP_SECONDS):
        try:
            if lock.is_last():
                stop()
        finally:
            lock.leave()


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise EmbeddedServiceError(
            f"file locks do not work here ({error.strerror}): set DATA_DIR to a directory on a local disk"
        ) from error
    return True


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
