"""Sandboxes of this machine: ``pydantic-monty``, an interpreter that has no file, network or environment of its own.

Its workers are processes that only interpret: what code asks of the outside is answered by the pool, here from the
mounts of the thread's directories alone. Each run has a fresh session, so nothing of a run that was cut off lives on.
"""

import asyncio
import importlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from backend.infra.quota import used
from backend.infra.threads import AREAS, UPLOADS, VIRTUAL_ROOT, ThreadPaths
from backend.sandbox.base import (
    Exceeded,
    Execution,
    SandboxBusy,
    SandboxError,
    SandboxLimits,
    UnknownSandbox,
)

if TYPE_CHECKING:
    import pydantic_monty

MAX_CODE_CHARS = 100_000
MAX_ERROR_CHARS = 4_000
GRACE_SECONDS = 2.0
"""Beyond the limits of a run until its worker is killed."""

_SIGNS: tuple[tuple[str, Exceeded], ...] = (
    ("feed time limit exceeded", "time"),
    ("sleep limit exceeded", "sleep"),
    ("MemoryError: ", "memory"),
    ("RecursionError: ", "recursion"),
    ("suspension limit", "calls"),
    ("disk write limit", "storage"),
)
_NO_VALUE = "\n\nNone"
"""At the end of all code: the value of a last expression would be copied into this process, however large."""


class LocalSandboxes:
    """The sandboxes of one process. The first run starts the pool of workers, ``processes`` at most.

    ``locate`` finds a thread's directories and raises ``ValueError`` for what is no thread id.
    """

    def __init__(
        self, locate: Callable[[str], ThreadPaths], limits: SandboxLimits | None = None, *, processes: int = 2
    ) -> None:
        self._limits = limits or SandboxLimits()
        self._locate = locate
        self._processes = processes
        self._places = asyncio.Semaphore(processes)
        self._starting = asyncio.Lock()
        self._pool: pydantic_monty.AsyncMonty | None = None
        self._closed = False
        self._by_thread: dict[str, LocalSandbox] = {}
        self._by_id: dict[str, LocalSandbox] = {}

    @property
    def limits(self) -> SandboxLimits:
        return self._limits

    async def acquire(self, thread_id: str) -> str:
        """As the port says; starts nothing yet."""
        if self._closed:
            raise SandboxError("the sandboxes are closed")
        known = self._by_thread.get(thread_id)
        if known is None:
            known = LocalSandbox(uuid4().hex, thread_id, self._locate(thread_id), self)
            self._by_thread[thread_id] = self._by_id[known.id] = known
        return known.id

    async def get(self, sandbox_id: str) -> "LocalSandbox":
        """As the port says."""
        found = self._by_id.get(sandbox_id)
        if found is None:
            raise UnknownSandbox("the sandbox is not acquired")
        return found

    async def release(self, sandbox_id: str) -> None:
        """As the port says."""
        found = self._by_id.pop(sandbox_id, None)
        if found is not None:
            del self._by_thread[found.thread_id]
            await found.stop()

    async def aclose(self) -> None:
        """As the port says."""
        self._closed = True
        for sandbox_id in list(self._by_id):
            await self.release(sandbox_id)
        async with self._starting:
            pool, self._pool = self._pool, None
            if pool is not None:
                await pool.__aexit__(None, None, None)

    async def run(self, code: str, paths: ThreadPaths) -> Execution:
        """Runs ``code`` with the thread's directories. Errors as :meth:`Sandbox.run_python`."""
        try:
            async with asyncio.timeout(self._limits.wait_seconds):
                await self._places.acquire()
        except TimeoutError:
            raise SandboxBusy("no place in a sandbox became free in time") from None
        try:
            return await self._run(code, paths)
        finally:
            self._places.release()

    async def _run(self, code: str, paths: ThreadPaths) -> Execution:
        monty = _library()
        pool = await self._started(monty)
        mounts = await asyncio.to_thread(self._mounts, monty, paths)
        printed = _Printed(self._limits.output_chars, asyncio.get_running_loop())
        with ExitStack() as stack:
            for mount in mounts:
                stack.callback(mount.close)
            work = asyncio.create_task(self._feed(monty, pool, code, printed, mounts))
            printed.stop = work.cancel
            try:
                error = await work
            except asyncio.CancelledError:
                if not printed.full:  # it is this task that was cancelled
                    work.cancel()
                    await asyncio.wait([work])
                    raise
                error = None
        if printed.full:
            return Execution(printed.text, "output limit exceeded: print less", "output")
        return Execution(printed.text, error, None if error is None else _exceeded(error))

    async def _feed(
        self, monty: Any, pool: "pydantic_monty.AsyncMonty", code: str, printed: "_Printed", mounts: list[Any]
    ) -> str | None:
        """The error that ended the code, or ``None``."""
        limits = self._limits
        try:
            async with pool.checkout(limits=_monty_limits(limits)) as session:
                await session.feed_run(code + _NO_VALUE, print_callback=printed, mount=mounts, cwd=_WORKSPACE)
        except (monty.MontyRuntimeError, monty.MontySyntaxError) as error:
            return error.display()[:MAX_ERROR_CHARS]
        except monty.MontyCrashedError as error:
            if error.timed_out:
                return f"TimeoutError: feed time limit exceeded: {limits.seconds} s"
            return "MemoryError: the run was ended with its process"
        except (monty.MontyError, TimeoutError) as error:
            raise SandboxError("the code could not be run") from error
        return None

    async def _started(self, monty: Any) -> "pydantic_monty.AsyncMonty":
        async with self._starting:
            if self._closed:
                raise SandboxError("the sandboxes are closed")
            if self._pool is not None:
                return self._pool
            pool: pydantic_monty.AsyncMonty = monty.AsyncMonty(
                min_processes=0,
                max_processes=self._processes,
                checkout_timeout=self._limits.wait_seconds,
                request_timeout=self._limits.seconds + self._limits.sleep_seconds + GRACE_SECONDS,
                max_checkouts_per_worker=200,
            )
            await pool.__aenter__()
            self._pool = pool
            return pool

    def _mounts(self, monty: Any, paths: ThreadPaths) -> list[Any]:
        """The thread's directories, those that can be written with what is left of their quota; blocks."""
        paths.make()
        return [self._mount(monty, area, paths.area(area)) for area in sorted(AREAS, reverse=True)]

    def _mount(self, monty: Any, area: str, directory: Path) -> Any:
        virtual = f"{VIRTUAL_ROOT}/{area}"
        if area == UPLOADS:
            return monty.MountDir(host_path=directory, virtual_path=virtual, mode="read-only")
        usage = used(directory)
        left = max(0, self._limits.storage_bytes - usage.size)
        if usage.entries >= self._limits.storage_files or left == 0:
            return monty.MountDir(host_path=directory, virtual_path=virtual, mode="read-only")
        return monty.MountDir(host_path=directory, virtual_path=virtual, mode="read-write", write_bytes_limit=left)


_WORKSPACE = f"{VIRTUAL_ROOT}/workspace"


class LocalSandbox:
    """One thread's sandbox here: its directories, and the runs that are under way."""

    def __init__(self, sandbox_id: str, thread_id: str, paths: ThreadPaths, owner: LocalSandboxes) -> None:
        self.id = sandbox_id
        self.thread_id = thread_id
        self._paths = paths
        self._owner = owner
        self._running: set[asyncio.Task[Execution]] = set()

    async def run_python(self, code: str) -> Execution:
        """As the port says."""
        if len(code) > MAX_CODE_CHARS:
            return Execution("", f"the code has more than {MAX_CODE_CHARS} characters")
        task = asyncio.create_task(self._owner.run(code, self._paths))
        self._running.add(task)
        try:
            await asyncio.wait([task])
            if task.cancelled():
                raise SandboxError("the sandbox was released")
            return task.result()
        finally:
            self._running.discard(task)
            task.cancel()

    async def stop(self) -> None:
        """Ends what runs."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)


@dataclass(slots=True)
class _Printed:
    """What code prints, up to ``most`` characters; more ends the run. Called from a thread of the library, for which a
    callback that raises is no reason to stop."""

    most: int
    loop: asyncio.AbstractEventLoop
    parts: list[str] = field(default_factory=list)
    size: int = 0
    stop: Callable[[], Any] | None = None

    def __call__(self, _: str, text: str) -> None:
        if self.full:
            return
        self.parts.append(text[: self.most - self.size])
        self.size += len(text)
        if self.full and self.stop is not None:
            self.loop.call_soon_threadsafe(self.stop)

    @property
    def full(self) -> bool:
        return self.size > self.most

    @property
    def text(self) -> str:
        return "".join(self.parts)


def _monty_limits(limits: SandboxLimits) -> "pydantic_monty.ResourceLimits":
    return {
        "max_feed_duration_secs": limits.seconds,
        "max_memory": limits.memory_bytes,
        "max_total_sleep_secs": limits.sleep_seconds,
        "max_recursion_depth": limits.recursion_depth,
        "max_suspensions": limits.host_calls,
    }


def _exceeded(error: str) -> Exceeded | None:
    last = error.rstrip().rpartition("\n")[2]
    return next((limit for sign, limit in _SIGNS if sign in last), None)


def _library() -> Any:
    """``pydantic_monty``, loaded by the first run: most processes run none."""
    return importlib.import_module("pydantic_monty")
