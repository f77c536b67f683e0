"""Reading a run: a subscriber holds nothing but a cursor, on whatever worker, while the run goes on or long after.

Events come from memory if this worker has the run, else from the table. Where they are gone, one ``gap`` carries the
stored text and the end is rebuilt from the rows.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat import run_repository
from backend.chat.events import EventHub, RunLog
from backend.chat.records import EventBatch, RunRow
from backend.chat.storage import ConversationStorage
from backend.chat.tail import numbered, stored_end, tail_events
from backend.chat.wakeups import Wakeups
from backend.errors import NotFound
from backend.infra.database.engine import reading
from backend.metrics import DROPPED_SUBSCRIBERS, SUBSCRIBERS
from backend.schemas.chat import GapEvent, encode_event

Look = tuple[RunRow | None, list[EventBatch]]
"""A run, and its stored events from a cursor on."""

POLL_SECONDS = 0.5
WAIT_SECONDS = 5.0
READ_BATCHES = 64


class StreamCut(Exception):
    """The stream closes without ``done``: the reader fell too far behind, or the end could not be stored.

    The client may come back with its cursor.
    """


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One event as it goes over the wire: its place and its JSON."""

    seq: int
    data: bytes


class Subscriptions:
    """Streams of events of any run of a user."""

    def __init__(
        self,
        engine: AsyncEngine,
        storage: ConversationStorage,
        hub: EventHub,
        wakeups: Wakeups,
        *,
        max_behind: int = 1024,
    ) -> None:
        self._engine = engine
        self._storage = storage
        self._hub = hub
        self._wakeups = wakeups
        self._max_behind = max_behind
        self._looks: dict[tuple[UUID, UUID, int], asyncio.Task[Look]] = {}
        self.count = 0
        """Subscribers now."""

    async def close(self) -> None:
        """Wait for what is just being read."""
        await asyncio.gather(*self._looks.values(), return_exceptions=True)

    async def follow(self, user_id: UUID, run_id: UUID, after: int) -> AsyncGenerator[list[LoggedEvent]]:
        """The events above ``after``, in lists as they come, to the end of the run (``done`` is the last).

        Gives nothing when ``after`` is the end of an ended run. No database connection is held between the lists.
        Raises :class:`NotFound` when the run is not the user's, :class:`StreamCut` when the reader falls behind
        a running run by more than ``max_behind`` events, or when this worker could not store the end.
        """
        log = self._hub.get(run_id)
        if log is not None and log.user_id != user_id:
            raise NotFound
        self.count += 1
        SUBSCRIBERS.inc()
        try:
            cursor = after
            # A log that was cut lacks its end; the table has it as soon as somebody could store it.
            if log is not None and self._hub.memory_log and not log.cut:
                async for events in self._from_memory(log, after):
                    cursor = events[-1].seq
                    yield events
                if log.cut:
                    raise StreamCut
                if self._hub.get(run_id) is log:
                    return
            with self._wakeups.reading(run_id) as heard:
                async for events in self._from_table(user_id, run_id, cursor, heard):
                    yield events
        finally:
            self.count -= 1
            SUBSCRIBERS.dec()

    async def _from_memory(self, log: RunLog, after: int) -> AsyncGenerator[list[LoggedEvent]]:
        cursor, caught_up = after, False
        if cursor > log.last_seq:
            cursor = log.last_seq if log.tail_seq is None else log.tail_seq - 1
            yield [_gap(cursor + 1, cursor, log.text)]
        while True:
            if cursor < log.last_seq:
                if caught_up and log.last_seq - cursor > self._max_behind:
                    DROPPED_SUBSCRIBERS.inc()
                    raise StreamCut
                events = log.events[cursor : cursor + self._max_behind]
                batch = [LoggedEvent(cursor + offset, data) for offset, data in enumerate(events, start=1)]
                cursor += len(events)
                yield batch
            elif log.ended:
                return
            else:
                caught_up = True
                await log.wait(WAIT_SECONDS)

    async def _from_table(
        self, user_id: UUID, run_id: UUID, after: int, heard: asyncio.Event
    ) -> AsyncGenerator[list[LoggedEvent]]:
        cursor = after
        known = cursor == 0
        if await self._storage.run(user_id, run_id) is None:
            raise NotFound
        while True:
            heard.clear()
            current, batches = await self._look(user_id, run_id, cursor)
            if current is None:  # the session was deleted meanwhile
                return
            known = known or any(batch.first_seq <= cursor <= batch.last_seq for batch in batches)
            fresh = _above(batches, cursor)
            if fresh and known:
                cursor = fresh[-1].seq
                for start in range(0, len(fresh), self._max_behind):  # a reader that stands still holds one such list
                    yield fresh[start : start + self._max_behind]
            elif current.status != "running" and not (known and cursor >= current.last_seq):
                for events in await self._rebuilt(current, cursor):
                    yield events
                return
            elif current.status != "running":
                return
            else:
                await self._wait(run_id, heard)

    async def _look(self, user_id: UUID, run_id: UUID, cursor: int) -> Look:
        """What there is above ``cursor``, read once for all who ask at the same time: readers of a live run stand at
        the same place and are woken together."""
        key = (user_id, run_id, cursor)
        look = self._looks.get(key)
        if look is None:
            look = self._looks[key] = asyncio.create_task(self._read(user_id, run_id, cursor))
            look.add_done_callback(partial(self._looked, key))
        return await asyncio.shield(look)

    def _looked(self, key: tuple[UUID, UUID, int], look: asyncio.Task[Look]) -> None:
        del self._looks[key]
        if not look.cancelled():
            look.exception()  # retrieved, even if everybody who asked has left

    async def _read(self, user_id: UUID, run_id: UUID, cursor: int) -> Look:
        """The run first: one that has ended has no events to come."""
        current = await self._storage.run(user_id, run_id)
        async with reading(self._engine) as connection:
            return current, await run_repository.read_events(connection, run_id, max(cursor - 1, 0), READ_BATCHES)

    async def _wait(self, run_id: UUID, heard: asyncio.Event) -> None:
        """Until there may be something new: told by this worker's log or another's hint, else by the time."""
        if (log := self._hub.get(run_id)) is not None:
            await log.wait(POLL_SECONDS)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await heard.wait()

    async def _rebuilt(self, run: RunRow, cursor: int) -> list[list[LoggedEvent]]:
        """What a terminal run still owes to ``cursor``: the stored text in a ``gap``, then its end."""
        message = await self._storage.message(run.ref.user_id, run.ref.message_id)
        if message is None:
            return []
        events = tail_events(run.ref, stored_end(run, message))
        tail = numbered(run.ref, events, max(run.last_seq - len(events) + 1, 1))
        if cursor == run.last_seq:
            return []
        if tail.first_seq - 1 <= cursor < run.last_seq:
            return [_above([tail], cursor)]
        return [[_gap(min(cursor + 1, tail.first_seq - 1), tail.first_seq - 1, message.content)], _above([tail], 0)]


def _above(batches: list[EventBatch], cursor: int) -> list[LoggedEvent]:
    events = [
        LoggedEvent(seq, data) for batch in batches for seq, data in enumerate(batch.events, start=batch.first_seq)
    ]
    return [event for event in events if event.seq > cursor]


def _gap(first: int, last: int, content: str) -> LoggedEvent:
    event = GapEvent(seq=last, from_=min(first, last), to=last, content=content)
    return LoggedEvent(event.seq, encode_event(event))
