"""The runs of this worker: their leases, stopping them, and ending the runs that another worker left behind."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from uuid import UUID

import orjson
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat import run_repository
from backend.chat.config import ChatConfig
from backend.chat.events import EventHub
from backend.chat.records import RunRow, TurnEnd
from backend.chat.storage import ConversationStorage
from backend.chat.tail import numbered, tail_events
from backend.chat.turn import Cause, RunHandle, error_info
from backend.chat.wakeups import Wakeups
from backend.errors import StorageUnavailable
from backend.infra.database.engine import transaction
from backend.infra.periodic import every
from backend.log import get_logger
from backend.metrics import ACTIVE_RUNS, count_turn

REAP_GAP = 1_000
"""Events that a dead worker may have sent without storing them: the repaired end starts above them."""

REAP_LIMIT = 100
KEY_HOURS = 24.0
SWEEP_SECONDS = 60.0
STOP_POLL_SECONDS = 0.4
"""A stop that another worker was asked for ends the provider call within a second."""

_log = get_logger(__name__)


class RunSupervisor:
    """Owns what must happen to runs beside producing them."""

    def __init__(
        self,
        engine: AsyncEngine,
        storage: ConversationStorage,
        hub: EventHub,
        wakeups: Wakeups,
        config: ChatConfig,
        *,
        worker_id: str,
    ) -> None:
        self._engine = engine
        self._storage = storage
        self._hub = hub
        self._wakeups = wakeups
        self._config = config
        self._worker_id = worker_id
        self._handles: dict[UUID, RunHandle] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._renewed_at = asyncio.get_running_loop().time()

    # --- life ---

    async def start(self) -> None:
        """End what an earlier process left, then keep leases, flush events and sweep in the background."""
        with contextlib.suppress(StorageUnavailable):
            await self.reap()
        beat = self._config.lease_seconds / 5
        at_once = asyncio.Event()  # what went past its time while no worker ran does not wait for a minute
        at_once.set()
        self._tasks = [
            asyncio.create_task(self._hub.flush_forever()),
            asyncio.create_task(every(beat, self.renew)),
            asyncio.create_task(every(STOP_POLL_SECONDS, self.stop_requested, wake=self._wakeups.stop_asked)),
            asyncio.create_task(every(beat, self.reap)),
            asyncio.create_task(every(SWEEP_SECONDS, self.sweep, wake=at_once)),
        ]

    async def close(self) -> None:
        """Stop the background work. Runs must have ended before."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def drain(self) -> None:
        """End every run ``interrupted`` with its text, within the grace."""
        handles = list(self._handles.values())
        for handle in handles:
            handle.cancel("shutdown")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.shutdown_grace_seconds):
                await asyncio.gather(*(handle.done.wait() for handle in handles))

    # --- this worker's runs ---

    @property
    def active(self) -> int:
        """How many runs this worker produces now."""
        return len(self._handles)

    def add(self, handle: RunHandle, run: Callable[[RunHandle], Awaitable[None]]) -> None:
        """Produce ``handle``'s turn in a task of its own, which nobody's disconnect ends."""
        self._handles[handle.ref.run_id] = handle
        ACTIVE_RUNS.inc()
        handle.task = asyncio.create_task(self._own(handle, run))

    async def _own(self, handle: RunHandle, run: Callable[[RunHandle], Awaitable[None]]) -> None:
        try:
            await run(handle)
        except Exception:
            _log.exception("turn_crashed", run_id=str(handle.ref.run_id))
            self._hub.discard(handle.log)  # the lease ends it
            raise
        finally:
            self._handles.pop(handle.ref.run_id, None)
            ACTIVE_RUNS.dec()

    def handle(self, run_id: UUID) -> RunHandle | None:
        """The handle of a run that this worker produces."""
        return self._handles.get(run_id)

    def lease_left(self) -> float:
        """Seconds for which the leases of this worker are sure to hold."""
        return self._renewed_at + self._config.lease_seconds - asyncio.get_running_loop().time()

    async def stop(self, run_id: UUID) -> None:
        """Stop a run on whatever worker it is."""
        handle = self._handles.get(run_id)
        if handle is not None:
            handle.cancel("stop")
            return
        async with transaction(self._engine) as connection:
            await run_repository.request_stop(connection, run_id)
        self._wakeups.stop(run_id)

    async def stop_requested(self) -> None:
        """Stop the runs of this worker that another one was asked to stop."""
        if not self._handles:
            return
        async with transaction(self._engine) as connection:
            wanted = await run_repository.stop_requests(connection, self._worker_id, list(self._handles))
        for run_id in wanted:
            if (handle := self._handles.get(run_id)) is not None:
                handle.cancel("stop")

    async def renew(self) -> None:
        """Renew the leases and let go of the runs that were lost.

        When PostgreSQL was away for a whole lease, other workers may have ended the runs: they are let go unwritten.
        """
        before = asyncio.get_running_loop().time()
        ids = list(self._handles)
        try:
            async with transaction(self._engine) as connection:
                held = await run_repository.renew(connection, self._worker_id, ids, self._config.lease_seconds)
        except StorageUnavailable:
            if self.lease_left() <= 0:
                self._cancel_all("lost")
            raise
        self._renewed_at = before
        for run_id in ids:
            handle = self._handles.get(run_id)
            if handle is None:
                continue
            if run_id not in held:
                handle.cancel("lost")
        if self._hub.failing_for() > self._config.lease_seconds:
            self._cancel_all("storage")

    def _cancel_all(self, cause: Cause) -> None:
        for handle in self._handles.values():
            handle.cancel(cause)

    # --- what others left ---

    async def reap(self) -> None:
        """End every run whose lease has expired as ``interrupted``, with the text that its stored events hold.

        One that this worker still produces was frozen with it: it is renewed, and goes on.
        """
        async with transaction(self._engine) as connection:
            expired = await run_repository.expired(connection, REAP_LIMIT)
        for run in expired:
            if run.ref.run_id not in self._handles:
                await self.interrupt(run)

    async def interrupt(self, run: RunRow) -> bool:
        """End one expired run. False, with nothing done, when it is not running or not expired any more.

        It is taken over first, by a name that even a run of this worker does not have: what its owner writes later is
        refused, so the events that are read then are all that there will be.
        """
        owner = f"reaper:{self._worker_id}"
        async with transaction(self._engine) as connection:
            if not await run_repository.take_over(connection, run.ref.run_id, owner, self._config.lease_seconds):
                return False
            batches = await run_repository.read_events(connection, run.ref.run_id, 0)
        events = [orjson.loads(data) for batch in batches for data in batch.events]
        text = "".join(event["content"] for event in events if event["type"] == "content")
        last_seq = batches[-1].last_seq if batches else 0
        end = TurnEnd(status="interrupted", content=text, error=error_info("server_shutdown", run.language, True, None))
        tail = numbered(run.ref, tail_events(run.ref, end), last_seq + REAP_GAP)
        reaped = await self._storage.finish_turn(run.ref, end, tail, tail.last_seq, worker_id=owner)
        if reaped:
            self._wakeups.events([run.ref.run_id])
            count_turn("interrupted", "server_shutdown")
            _log.warning("run_reaped", run_id=str(run.ref.run_id))
        return reaped

    async def sweep(self) -> None:
        """Drop what is past its time: event batches, idempotency keys, copies of deleted sessions."""
        async with transaction(self._engine) as connection:
            await run_repository.drop_old_events(connection, self._config.event_retention_hours)
            await run_repository.release_keys(connection, KEY_HOURS)
        await self._storage.sweep_deleted()
