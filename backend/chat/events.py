"""The event log of this worker's runs: in memory while it is fresh, and on its way into ``run_events``."""

import asyncio
import time
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat import run_repository
from backend.chat.records import EventBatch, RunRef
from backend.chat.wakeups import Wakeups
from backend.errors import StorageUnavailable
from backend.infra.database.engine import transaction
from backend.log import get_logger
from backend.metrics import FIRST_TOKEN_SECONDS
from backend.schemas.chat import ChatEvent, ContentEvent, encode_event

FLUSH_SECONDS = 0.25
KEEP_ENDED_SECONDS = 30.0
"""How long an ended run's log stays in memory, for clients that come back at once."""

_log = get_logger(__name__)


@dataclass(slots=True)
class RunLog:
    """The events of a run that this worker owns. ``events[i]`` has ``seq`` i + 1."""

    run_id: UUID
    user_id: UUID
    events: list[bytes] = field(default_factory=list[bytes])
    stored: int = 0
    """How many events, from the first on, are in ``run_events``."""
    sealed: bool = False
    """The last transaction of the run stores the rest; the flusher leaves the log alone."""
    ended: bool = False
    """The last event is appended, or the run is lost to this worker: nothing more comes."""
    cut: bool = False
    """The end could not be stored; subscribers are let go without ``done``."""
    tail_seq: int | None = None
    """Where the end of the stream begins: above it there is no text any more."""
    pieces: list[str] = field(default_factory=list[str])
    flushing: asyncio.Event | None = None
    opened: float = field(default_factory=time.perf_counter)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def last_seq(self) -> int:
        return len(self.events)

    @property
    def text(self) -> str:
        """The answer so far, as subscribers have it."""
        return "".join(self.pieces)

    def append(self, event: ChatEvent) -> None:
        """Give ``event`` the next ``seq`` and wake who waits."""
        event.seq = len(self.events) + 1
        self.events.append(encode_event(event))
        if isinstance(event, ContentEvent):
            if not self.pieces:
                FIRST_TOKEN_SECONDS.observe(time.perf_counter() - self.opened)
            self.pieces.append(event.content)
        self.wake()

    def extend(self, batch: EventBatch) -> None:
        """Append the end of the stream, numbered and stored already."""
        self.tail_seq = batch.first_seq
        self.events.extend(batch.events)
        self.stored = len(self.events)
        self.wake()

    def wake(self) -> None:
        """Wake every subscriber that waits for something new."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, seconds: float) -> None:
        """Until something changes, ``seconds`` at most. What changed before the call is not waited for."""
        changed = self._changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return

    def pending(self) -> EventBatch | None:
        """What is not stored yet."""
        if self.stored == len(self.events):
            return None
        return EventBatch(self.run_id, self.stored + 1, self.events[self.stored :])


class EventHub:
    """The logs of this worker's runs and their way into the table."""

    def __init__(self, engine: AsyncEngine, wakeups: Wakeups, *, worker_id: str, memory_log: bool = True) -> None:
        self._engine = engine
        self._wakeups = wakeups
        self._worker_id = worker_id
        self._logs: dict[UUID, RunLog] = {}
        self._failing_since: float | None = None
        self.memory_log = memory_log
        """Off: subscribers always read the table, as those of another worker do."""

    def open(self, ref: RunRef) -> RunLog:
        """A new log for a run that this worker has claimed."""
        log = RunLog(ref.run_id, ref.user_id)
        self._logs[ref.run_id] = log
        return log

    def get(self, run_id: UUID) -> RunLog | None:
        """The log of a run of this worker that is fresh."""
        return self._logs.get(run_id)

    def end(self, log: RunLog, *, cut: bool = False) -> None:
        """The last event is appended; memory keeps the log for a while. ``cut``: without ``done``."""
        log.ended, log.cut = True, cut
        log.wake()
        self._wakeups.events([log.run_id])
        asyncio.get_running_loop().call_later(KEEP_ENDED_SECONDS, self._logs.pop, log.run_id, None)

    def discard(self, log: RunLog) -> None:
        """Forget a run that is not this worker's any more; its subscribers go on with the table."""
        self._logs.pop(log.run_id, None)
        log.sealed = log.ended = True
        log.wake()

    async def flush_forever(self) -> None:
        """Store new events every ``FLUSH_SECONDS``, all runs in one statement. A failure is tried again."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self.flush()
                self._failing_since = None
            except (StorageUnavailable, DBAPIError):
                self._failing_since = self._failing_since or asyncio.get_running_loop().time()
                _log.warning("event_flush_failed", exc_info=True)

    @property
    def pending_events(self) -> int:
        """How many events of running turns are not stored yet."""
        return sum(log.last_seq - log.stored for log in self._logs.values() if not log.ended)

    def failing_for(self) -> float:
        """Seconds since when no event could be stored; 0 when they can."""
        return 0.0 if self._failing_since is None else asyncio.get_running_loop().time() - self._failing_since

    async def flush(self) -> None:
        """Store what is pending. Raises :class:`StorageUnavailable`; what was pending stays so."""
        pending = [(log, log.pending()) for log in self._logs.values() if not log.sealed and log.flushing is None]
        work = [(log, batch) for log, batch in pending if batch is not None]
        if not work:
            return
        done = asyncio.Event()
        for log, _ in work:
            log.flushing = done
        try:
            async with transaction(self._engine) as connection:
                # What a crash of PostgreSQL may cost here is the text of an unfinished answer.
                await connection.execute(text("set local synchronous_commit = off"))
                await run_repository.insert_events(connection, [batch for _, batch in work], self._worker_id)
            for log, batch in work:
                log.stored = batch.last_seq
            self._wakeups.events(log.run_id for log, _ in work)
        finally:
            done.set()
            for log, _ in work:
                log.flushing = None
                log.wake()

    async def seal(self, log: RunLog) -> EventBatch | None:
        """Keep the flusher off; gives what the last transaction of the run has to store itself."""
        log.sealed = True
        if log.flushing is not None:
            await log.flushing.wait()
        return log.pending()
