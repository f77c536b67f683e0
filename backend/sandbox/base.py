"""The port of sandboxes: code that a model writes runs there, sees the thread's directories and nothing else."""

from dataclasses import dataclass
from typing import Literal, Protocol

Exceeded = Literal["time", "memory", "sleep", "recursion", "output", "calls", "storage"]


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one run may use; the limits end the run, never the process that asked for it.

    ``seconds`` are those of running code, ``sleep_seconds`` of sleeping in it, ``wait_seconds`` of waiting for a free
    place before. ``host_calls`` counts accesses to files. ``storage_bytes`` and ``storage_files`` are what each of the
    directories ``workspace`` and ``outputs`` may hold.
    """

    seconds: float = 10.0
    sleep_seconds: float = 5.0
    wait_seconds: float = 20.0
    memory_bytes: int = 128 * 1024 * 1024
    recursion_depth: int = 500
    host_calls: int = 2_000
    output_chars: int = 20_000
    storage_bytes: int = 100 * 1024 * 1024
    storage_files: int = 1_000


@dataclass(frozen=True, slots=True)
class Execution:
    """How a run ended. ``output`` is what was printed, cut to the limit.

    ``error`` is the text of the error that ended it, for the model to read; ``exceeded`` the limit that did.
    """

    output: str
    error: str | None = None
    exceeded: Exceeded | None = None


class SandboxError(RuntimeError):
    """The sandbox cannot be had or used."""


class UnknownSandbox(SandboxError):
    """No sandbox of that id is acquired: it never was, or was given back."""


class SandboxBusy(SandboxError):
    """No place became free in time."""


class SandboxConflict(SandboxError):
    """One thread, two sandboxes: which of them has its files cannot be known."""


class Sandbox(Protocol):
    """One thread's sandbox. Runs share the thread's directories and nothing else: each begins with no variables."""

    @property
    def id(self) -> str: ...

    @property
    def thread_id(self) -> str: ...

    async def run_python(self, code: str) -> Execution:
        """Runs ``code`` within the limits. What the code does wrong is part of the result.

        Raises :class:`SandboxError` when it could not be run at all, :class:`SandboxBusy` when no place is free.
        """
        ...


class SandboxProvider(Protocol):
    """Who has the sandboxes of a process."""

    @property
    def limits(self) -> SandboxLimits: ...

    async def acquire(self, thread_id: str) -> str:
        """The id of the thread's sandbox: the same one until it is released.

        Raises ``ValueError`` for what is no thread id, :class:`SandboxConflict` when another process or id holds the
        thread, :class:`SandboxError` when none can be had.
        """
        ...

    async def get(self, sandbox_id: str) -> Sandbox:
        """The acquired sandbox of that id. Raises :class:`UnknownSandbox`."""
        ...

    async def release(self, sandbox_id: str) -> None:
        """Gives the sandbox back and ends what runs in it; files stay. Released already, or unknown: nothing."""
        ...

    async def aclose(self) -> None:
        """Releases all and ends every process; nothing can be acquired afterwards."""
        ...
