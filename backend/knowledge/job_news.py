"""Whether any job changed: one look for all who watch in this process, so that one who only waits costs nothing."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from backend.errors import StorageUnavailable
from backend.knowledge.job_repository import JobRepository

LOOK_SECONDS = 0.5
ANYWAY_SECONDS = 10.0
"""After which one looks whatever the news are; they are a hint, as they name neither job nor owner."""


class JobNews:
    """Looks while somebody listens. Owns nothing that it is given."""

    def __init__(self, jobs: JobRepository) -> None:
        self._jobs = jobs
        self._changed = asyncio.Event()
        self._listeners = 0
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Inside, :attr:`next` is kept."""
        self._listeners += 1
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._listeners -= 1
            if not self._listeners:
                self._task.cancel()
                self._task = None

    @property
    def next(self) -> asyncio.Event:
        """Set with the next change of a job of any owner; to be taken before one looks, to miss none."""
        return self._changed

    async def wait(self, change: asyncio.Event) -> None:
        """Until ``change`` is set, or ``ANYWAY_SECONDS`` have passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANYWAY_SECONDS):
                await change.wait()

    async def _look(self) -> None:
        known: object = None
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            with suppress(StorageUnavailable):
                found = await self._jobs.activity()
                if found != known:
                    known = found
                    self._changed.set()
                    self._changed = asyncio.Event()
