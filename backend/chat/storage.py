"""Conversations in PostgreSQL with copies in Redis. One public method is one transaction.

PostgreSQL is the truth. A copy is used only when its version is the row's version, which costs one indexed read.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat import repository, run_repository, turn_repository
from backend.chat.cursors import decode_session_key, encode_session_key
from backend.chat.difference import MESSAGE_CLASSES, record_of, write_difference
from backend.chat.hitl import PENDING_HITL, pending_state
from backend.chat.note_repository import NOTE, note_of
from backend.chat.records import (
    ClaimedTurn,
    EventBatch,
    MessagePage,
    RunRef,
    RunRow,
    StoredMessage,
    TurnClaim,
    TurnEnd,
)
from backend.chat.repository import SessionKey
from backend.chat.session_cache import PAGE, SessionCache, messages_key, sessions_key
from backend.chat.titles import one_line
from backend.chat.turn_repository import Claimed, Finished
from backend.errors import IdempotencyConflict, RunActive, StaleHitl, TooManyRuns, Unauthorized, ValidationFailed
from backend.infra.cache import Cache
from backend.infra.database.engine import reading, transaction
from backend.infra.thread_store import remove_thread
from backend.infra.threads import locate_thread, thread_id_of
from backend.log import get_logger
from backend.schemas.chat import MessageInfo, SessionInfo, SessionListResponse, normalize_rag_trace
from backend.text import clean_json

LIST_PAGE = 50
"""Sessions in the default page of a list, the only one that is cached."""

_log = get_logger(__name__)
_CACHE_OUTBOX, _FILES_OUTBOX = "session_cache", "thread_files"


class ConversationStorage:
    """Sessions, messages and the two transactions of a turn.

    Every method raises :class:`~backend.errors.StorageUnavailable` when PostgreSQL cannot be reached; a fault of
    Redis is never seen.
    """

    def __init__(self, engine: AsyncEngine, cache: Cache, data_dir: Path | None = None) -> None:
        """Files of sessions lie below ``data_dir``; without one there are none."""
        self._engine = engine
        self._cache = SessionCache(cache)
        self._data_dir = data_dir
        self._tasks: set[asyncio.Task[None]] = set()

    # --- keys and conversion ---

    @staticmethod
    def _messages_cache_key(user_id: UUID, session_id: str) -> str:
        """``chat_messages:{user}:{session}``."""
        return messages_key(user_id, session_id)

    @staticmethod
    def _sessions_cache_key(user_id: UUID) -> str:
        """``chat_sessions:{user}``."""
        return sessions_key(user_id)

    @staticmethod
    def _to_langchain_messages(records: Sequence[MessageInfo]) -> list[BaseMessage]:
        """Human, AI or System message by type, with the stored id."""
        return [MESSAGE_CLASSES[record.type](content=record.content, id=record.id) for record in records]

    @staticmethod
    def _normalize_message_records(records: Sequence[MessageInfo]) -> list[MessageInfo]:
        """The records with their traces normalized, whatever version wrote them."""
        return [record.model_copy(update={"rag_trace": normalize_rag_trace(record.rag_trace)}) for record in records]

    # --- a turn ---

    async def find_turn(self, user_id: UUID, session_id: str, key: str, request_hash: str) -> ClaimedTurn | None:
        """The turn that was claimed with ``key``, to attach to.

        Raises :class:`IdempotencyConflict` when the key belongs to another request.
        """
        async with reading(self._engine) as connection:
            found = await run_repository.by_key(connection, user_id, session_id, key)
        return None if found is None else _known(*found, request_hash)

    async def append_turn(self, claim: TurnClaim) -> ClaimedTurn:
        """Accept a turn: session, run, human message and pending answer in one transaction. Losing writes nothing.

        Raises :class:`RunActive` (with ``run_id``), :class:`IdempotencyConflict`, :class:`StaleHitl`,
        :class:`TooManyRuns`.
        """
        async with reading(self._engine) as connection:  # one statement is a transaction of its own
            claimed = await turn_repository.claim_turn(connection, claim)
        if claimed.outcome == "known":
            return _known(claimed.ref, claimed.request_hash, claim.request_hash)
        _refuse(claimed)
        changed = turn_repository.turn_messages(claimed, claim.message)
        self._later(self._write_through(claim.user_id, claim.session_id, claimed, changed))
        return ClaimedTurn(
            claimed.ref,
            created=True,
            title=claimed.title,
            answers=pending_state(claimed.meta.get(PENDING_HITL)),
            first_seq=claimed.first_seq,
            note=note_of(claimed.meta).text,
            thread=claimed.thread,
            session_title=claimed.session_title,
            uploads=claimed.uploads,
        )

    async def finish_turn(
        self, ref: RunRef, end: TurnEnd, tail: EventBatch | None, last_seq: int, *, worker_id: str
    ) -> bool:
        """End a turn: answer, session and run in one transaction, with the events that were not stored yet.

        A question back that it asks is pending from now on; one that it was to answer is so again, as it was, unless
        the turn completed.

        False, with nothing written, when the run is no longer running or not this worker's.
        """
        async with reading(self._engine) as connection:  # one statement is a transaction of its own
            finished = await turn_repository.finish_turn(connection, ref, end, tail, last_seq, worker_id=worker_id)
        if finished is None:
            return False
        await self._write_through(ref.user_id, ref.session_id, finished, [finished.answer])
        return True

    async def recent_turns(self, ref: RunRef, limit: int) -> list[MessageInfo]:
        """The last ``limit`` messages before the turn's own, ascending, from PostgreSQL: what a prompt is built of."""
        async with reading(self._engine) as connection:
            found = await repository.messages(connection, ref.session_row_id, limit=limit + 2)
        own = {str(ref.human_message_id), str(ref.message_id)}
        return [item.info for item in found if item.info.id not in own][-limit:]

    # --- the whole history ---

    async def save(
        self,
        user_id: UUID,
        session_id: str,
        messages: Sequence[BaseMessage],
        metadata: dict[str, Any] | None = None,
        extra_message_data: Sequence[dict[str, Any] | None] | None = None,
    ) -> None:
        """Make the stored history equal ``messages``, writing only the difference.

        A message is unchanged when position, type and content agree; it keeps id, time and trace unless
        ``extra_message_data`` at its index brings a new ``rag_trace``. ``metadata`` is merged; a note on messages that
        are no more goes.

        Raises :class:`RunActive` while an answer is being written, which would be lost, and ``ValueError`` for a
        message that is neither human, AI nor system.
        """
        wanted = [record_of(message, index, extra_message_data) for index, message in enumerate(messages)]
        async with transaction(self._engine) as connection:
            if await repository.lock_user(connection, user_id) is None:
                raise Unauthorized
            session = await repository.touch_session(connection, user_id, session_id)
            busy = await run_repository.active(connection, session.id)
            if busy is not None:
                raise RunActive(run_id=str(busy.ref.run_id))
            last_seq, rewritten = await write_difference(connection, session.id, wanted)
            meta = await repository.session_meta(connection, user_id, session_id)
            if rewritten:
                meta.pop(NOTE, None)
            await repository.update_session(
                connection,
                session.id,
                message_count=len(wanted),
                last_seq=last_seq,
                meta=meta | clean_json(metadata or {}),
            )
            page = await repository.messages(connection, session.id, limit=PAGE)
        await self._cache.put_messages(user_id, session_id, session.version, page)
        await self._cache.drop_list(user_id)

    async def load(self, user_id: UUID, session_id: str) -> list[BaseMessage]:
        """The whole history as LangChain messages; a pending answer is not part of it."""
        records = await self.get_session_messages(user_id, session_id)
        return self._to_langchain_messages([record for record in records if record.status != "pending"])

    async def load_with_meta(self, user_id: UUID, session_id: str) -> tuple[list[BaseMessage], dict[str, Any]]:
        """History and metadata of a session; both empty when it was not used yet."""
        messages = await self.load(user_id, session_id)
        async with transaction(self._engine) as connection:
            return messages, await repository.session_meta(connection, user_id, session_id)

    # --- reading ---

    async def list_sessions(self, user_id: UUID) -> list[str]:
        """The ids of all sessions of the user, newest first."""
        return [info.session_id for info in await self.list_session_infos(user_id)]

    async def list_session_infos(self, user_id: UUID) -> list[SessionInfo]:
        """All sessions of the user, newest first. A page at a time: :meth:`session_page`."""
        infos, below = await self.session_page(user_id)
        while below is not None:
            more, below = await self.session_page(user_id, limit=200, below=below)
            infos += more
        return infos

    async def session_page(
        self, user_id: UUID, *, limit: int = LIST_PAGE, below: SessionKey | None = None
    ) -> tuple[list[SessionInfo], SessionKey | None]:
        """A page of sessions below ``below``, newest first, and where the next one starts.

        Two statements; one when the first default page is in the cache.
        """
        cacheable = below is None and limit == LIST_PAGE
        async with reading(self._engine) as connection:
            version = await repository.list_version(connection, user_id)
        if cacheable and (page := await self._cache.list_page(user_id, version)) is not None:
            return page.sessions, decode_session_key(page.next_cursor)
        async with reading(self._engine) as connection:
            infos, last = await repository.sessions(connection, user_id, limit, below)
        if cacheable:
            # The version was read first, so a list that changed in between is kept under a version that is past.
            copy = SessionListResponse(sessions=infos, next_cursor=encode_session_key(last))
            await self._cache.put_list_page(user_id, version, copy)
        return infos, last

    async def get_session_messages(self, user_id: UUID, session_id: str) -> list[MessageInfo]:
        """The whole history of a session, ascending; empty when it was not used yet. See :meth:`message_page`."""
        page = await self.message_page(user_id, session_id, limit=PAGE)
        records = [item.info for item in page.messages]
        if page.more:
            async with reading(self._engine) as connection:
                found = await repository.session_head(connection, user_id, session_id)
                stored = [] if found is None else await repository.messages(connection, found.id, limit=None)
            records = [item.info for item in stored]
        return self._normalize_message_records(records)

    async def message_page(
        self, user_id: UUID, session_id: str, *, limit: int = PAGE, before: int | None = None
    ) -> MessagePage:
        """The last ``limit`` messages below ``seq`` ``before``, ascending; empty when the session was not used yet."""
        async with reading(self._engine) as connection:
            found = await repository.session_head(connection, user_id, session_id)
        if found is None:
            return MessagePage(0, [])
        version = found.version
        cacheable = before is None and limit == PAGE
        page = await self._cache.messages(user_id, session_id, version) if cacheable else None
        if page is None:
            async with reading(self._engine) as connection:
                page = await repository.messages(connection, found.id, limit=limit, before=before)
            if cacheable:
                await self._cache.put_messages(user_id, session_id, version, page)
        more = bool(page) and page[0].seq > 1
        return MessagePage(version, page, more=more, pending=pending_state(found.meta.get(PENDING_HITL)))

    async def message(self, user_id: UUID, message_id: UUID) -> MessageInfo | None:
        """One message of the user, or ``None``."""
        async with reading(self._engine) as connection:
            found = await repository.message(connection, user_id, message_id)
        return None if found is None else found.info

    async def run(self, user_id: UUID, run_id: UUID) -> RunRow | None:
        """One run of the user, or ``None``."""
        async with reading(self._engine) as connection:
            return await run_repository.get(connection, run_id, user_id)

    # --- changing ---

    async def rename(self, user_id: UUID, session_id: str, title: str) -> SessionInfo | None:
        """Give a session a title of the user's, on one line; ``None`` when there is no such session.

        Raises :class:`ValidationFailed` when there is nothing to read in it.
        """
        title = one_line(title)
        if not title:
            raise ValidationFailed(errors=[{"loc": ["body", "title"], "msg": "title is blank"}])
        async with transaction(self._engine) as connection:
            await repository.lock_user(connection, user_id)
            info = await repository.set_title(connection, user_id, session_id, title)
        await self._cache.drop_list(user_id)
        return info

    async def dismiss_hitl(self, user_id: UUID, session_id: str) -> bool:
        """Let no question back wait in a session, neither now nor when the turn that answers it does not complete.

        False when there is no such session.
        """
        async with transaction(self._engine) as connection:
            await repository.lock_user(connection, user_id)
            found = await repository.session_head(connection, user_id, session_id)
            if found is None:
                return False
            await run_repository.forget_taken_hitl(connection, found.id)
            await repository.drop_meta(connection, found.id, PENDING_HITL)
        return True

    async def active_run(self, user_id: UUID, session_id: str) -> RunRow | None:
        """The running run of a session, if there is one."""
        async with reading(self._engine) as connection:
            found = await repository.session_head(connection, user_id, session_id)
            return None if found is None else await run_repository.active(connection, found.id)

    async def delete_session(self, user_id: UUID, session_id: str) -> bool:
        """Delete a session with messages, runs and events. False when there was none.

        The copy in Redis and the thread's files are named in the outbox in the same transaction, so that they go even
        if that cannot be done now.
        """
        return await self._delete(user_id, session_id, limit=1) == 1

    async def delete_sessions(self, user_id: UUID, limit: int = PAGE) -> int:
        """Delete ``limit`` sessions as :meth:`delete_session` does. How many there were; 0: none is left."""
        return await self._delete(user_id, None, limit)

    async def _delete(self, user_id: UUID, session_id: str | None, limit: int) -> int:
        async with transaction(self._engine) as connection:
            list_version = await repository.lock_user(connection, user_id) or 0
            gone = await repository.delete_sessions(connection, user_id, session_id, limit)
            targets = [
                target
                for name, version, row in gone
                for target in (
                    (_CACHE_OUTBOX, f"{user_id}:{version}:{list_version}:{name}"),
                    (_FILES_OUTBOX, thread_id_of(user_id, row)),
                )
                if target[0] == _CACHE_OUTBOX or self._data_dir is not None
            ]
            outbox = [await repository.add_purge(connection, kind, target) for kind, target in targets]
        for row, (kind, target) in zip(outbox, targets, strict=True):
            await self._purge(row, kind, target)
        return len(gone)

    async def sweep_deleted(self) -> None:
        """Finish deletions whose copy or files could not be removed at once."""
        for kind in (_CACHE_OUTBOX, _FILES_OUTBOX):
            async with reading(self._engine) as connection:
                waiting = await repository.purges(connection, kind, limit=100)
            for outbox, target in waiting:
                await self._purge(outbox, kind, target)

    async def _purge(self, outbox: UUID, kind: str, target: str) -> None:
        if await (self._bury(target) if kind == _CACHE_OUTBOX else self._remove_files(target)):
            async with transaction(self._engine) as connection:
                await repository.drop_purge(connection, outbox)

    async def _bury(self, target: str) -> bool:
        user_id, version, list_version, session_id = target.split(":", 3)
        return await self._cache.bury(UUID(user_id), session_id, int(version), int(list_version))

    async def _remove_files(self, thread_id: str) -> bool:
        if self._data_dir is None:
            return False
        try:
            await asyncio.to_thread(remove_thread, locate_thread(self._data_dir, thread_id))
        except OSError as error:
            _log.warning("files_not_removed", error=type(error).__name__)
            return False
        return True

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Keep a copy up to date without letting the answer wait for it: a stale one is told by its version."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_through(
        self, user_id: UUID, session_id: str, session: Claimed | Finished, changed: list[StoredMessage]
    ) -> None:
        await self._cache.write_through(user_id, session_id, session.previous_version, session.version, changed)


def _known(ref: RunRef, stored_hash: str | None, request_hash: str) -> ClaimedTurn:
    if stored_hash != request_hash:
        raise IdempotencyConflict(run_id=str(ref.run_id))
    return ClaimedTurn(ref, created=False)


def _refuse(claimed: Claimed) -> None:
    match claimed.outcome:
        case "unauthorized":
            raise Unauthorized
        case "run_active":
            raise RunActive(run_id=str(claimed.ref.run_id))
        case "stale_hitl":
            raise StaleHitl
        case "too_many_runs":
            raise TooManyRuns(retry_after=2)
        case "claimed" | "known":
            return
