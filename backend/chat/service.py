"""The chat as its routes see it: start a turn, follow it, stop it, read and change sessions."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import orjson
from langchain_core.language_models import BaseChatModel
from sqlalchemy.ext.asyncio import AsyncEngine
from uuid_utils.compat import uuid7

from backend.catalogue import Language, say
from backend.chat.config import ChatConfig
from backend.chat.cursors import decode_seq, decode_session_key, encode_seq, encode_session_key
from backend.chat.deleted import ExistingDocuments, without_deleted
from backend.chat.events import EventHub
from backend.chat.hitl import hitl_info
from backend.chat.model_titles import ModelTitles
from backend.chat.notes import NoteKeeper
from backend.chat.records import ClaimedTurn, RunRow, TurnClaim
from backend.chat.runs import RunSupervisor
from backend.chat.runtime import AgentRuntime
from backend.chat.session_cache import PAGE
from backend.chat.storage import LIST_PAGE, ConversationStorage
from backend.chat.subscription import LoggedEvent, Subscriptions
from backend.chat.titles import rule_title
from backend.chat.turn import RunHandle, TurnRunner
from backend.chat.wakeups import Wakeups
from backend.errors import (
    Draining,
    IdempotencyKeyMismatch,
    MessageTooLarge,
    NotFound,
    RunActive,
    TooManyRuns,
)
from backend.infra.cache import Cache
from backend.infra.rate_limit import RateLimiter
from backend.schemas.auth import Principal
from backend.schemas.chat import (
    ChatRequest,
    ChatResponse,
    HitlDismissResponse,
    MessageInfo,
    RunInfo,
    RunStatus,
    SessionDeleteResponse,
    SessionInfo,
    SessionListResponse,
    SessionMessagesResponse,
    StopResponse,
)

STOP_WAIT_SECONDS = 1.0
INTERRUPT_WAIT_SECONDS = 5.0
POLL_SECONDS = 0.1

FindCollections = Callable[[UUID, list[str]], Awaitable[list[UUID]]]
"""A user's collections by names or ids. Raises :class:`NotFound` when one is unknown or another's."""


@dataclass(frozen=True, slots=True)
class StartedTurn:
    """A turn to follow: new, or the one that the same request has started before."""

    run_id: UUID
    session_id: str
    message_id: UUID


class ChatService:
    """One for each worker. :meth:`start` before use, :meth:`drain` and :meth:`close` at the end."""

    def __init__(
        self,
        engine: AsyncEngine,
        cache: Cache,
        rate_limiter: RateLimiter,
        runtime: AgentRuntime,
        config: ChatConfig,
        *,
        chat_rate_per_minute: int,
        count_tokens: Callable[[str], int],
        note_model: BaseChatModel | None = None,
        title_model: BaseChatModel | None = None,
        existing: ExistingDocuments | None = None,
        find_collections: FindCollections | None = None,
        upkeep: AsyncEngine | None = None,
        data_dir: Path | None = None,
    ) -> None:
        """``note_model`` makes the running notes, ``title_model`` the titles; without one there are none, or those by
        rule. ``existing`` tells which documents of old
        answers there still are. Files of conversations lie below ``data_dir``; without one there are none.

        ``upkeep`` has a connection that requests cannot take: without one a crowd that waits for connections also
        keeps leases from being renewed, and every run of the worker is lost."""
        self.config = config
        self._rate_limiter = rate_limiter
        self._runtime = runtime
        self._existing = existing or _all
        self._find_collections = find_collections or _no_collections
        self._rate = chat_rate_per_minute
        self._worker_id = str(uuid7())
        self._draining = False
        self.storage = ConversationStorage(engine, cache, data_dir)
        self._wakeups = Wakeups(cache)
        own = upkeep or engine
        self._hub = EventHub(own, self._wakeups, worker_id=self._worker_id, memory_log=config.event_memory_log)
        self._runs = RunSupervisor(own, self.storage, self._hub, self._wakeups, config, worker_id=self._worker_id)
        self.subscriptions = Subscriptions(
            engine, self.storage, self._hub, self._wakeups, max_behind=config.subscriber_max_events
        )
        self._notes = NoteKeeper(
            engine,
            note_model,
            messages=config.context_messages,
            tokens=runtime.history_tokens or config.prompt_max_tokens,
            count_tokens=count_tokens,
        )
        self._titles = ModelTitles(engine, title_model, allowed_hosts=config.allowed_link_hosts)
        self._runner = TurnRunner(
            self.storage,
            self._hub,
            runtime,
            self._notes,
            self._titles,
            config,
            count_tokens=count_tokens,
            lease_left=self._runs.lease_left,
            worker_id=self._worker_id,
        )

    async def start(self) -> None:
        """Repair what an earlier process left and begin to keep leases."""
        self._wakeups.start()
        await self._runs.start()

    async def drain(self) -> None:
        """Take no more turns and end those that run, with their text."""
        self._draining = True
        await self._runs.drain()
        await self._notes.close()
        await self._titles.close()

    async def close(self) -> None:
        """Stop the background work."""
        await self._notes.close()
        await self._titles.close()
        await self._runs.close()
        await self._wakeups.close()
        await self.subscriptions.close()

    @property
    def active_runs(self) -> int:
        """Runs that this worker produces now."""
        return self._runs.active

    @property
    def pending_events(self) -> int:
        """Events of this worker's running turns that are not stored yet."""
        return self._hub.pending_events

    @property
    def draining(self) -> bool:
        """Whether no more turns are taken."""
        return self._draining

    # --- a turn ---

    async def start_turn(
        self, user: Principal, request: ChatRequest, language: Language, *, key: str | None = None
    ) -> StartedTurn:
        """Accept a question and begin to answer it, or find the turn that the same request has begun before.

        ``key`` is the header ``Idempotency-Key``. Refuses in the order of design: raises :class:`MessageTooLarge`,
        :class:`IdempotencyKeyMismatch`, :class:`IdempotencyConflict`, :class:`RateLimited`, :class:`NotFound` (a
        collection), :class:`RunActive`, :class:`StaleHitl`, :class:`TooManyRuns`, :class:`Draining`,
        :class:`StorageUnavailable`.
        """
        too_long = len(request.message) > self.config.max_message_chars
        if too_long or not await self._runtime.accepts(request.message):
            raise MessageTooLarge
        key = _one_key(key, request.client_message_id)
        claim = self._claim(user, request, language, key)
        if key is not None:
            found = await self.storage.find_turn(user.id, request.session_id, key, claim.request_hash)
            if found is not None:
                return _started(found)
        await self._rate_limiter.check(f"chat:{user.id}", self._rate)
        named = request.collections
        collections = await self._find_collections(user.id, named) if named else None
        # A client that leaves now must not leave a claimed run behind that nobody produces.
        return await asyncio.shield(asyncio.create_task(self._claim_and_run(claim, request, collections)))

    def _claim(self, user: Principal, request: ChatRequest, language: Language, key: str | None) -> TurnClaim:
        return TurnClaim(
            user_id=user.id,
            session_id=request.session_id,
            message=request.message,
            request_hash=_request_hash(request),
            client_message_id=key,
            language=language,
            title=rule_title(request.message),
            worker_id=self._worker_id,
            lease_seconds=self.config.lease_seconds,
            max_runs_per_user=self.config.max_runs_per_user,
            hitl_id=request.hitl_id,
        )

    async def _claim_and_run(
        self, claim: TurnClaim, request: ChatRequest, collections: list[UUID] | None
    ) -> StartedTurn:
        if self._draining:
            raise Draining(retry_after=1)
        if self._runs.active >= self.config.max_runs_per_worker:
            raise TooManyRuns(retry_after=2)
        try:
            turn = await self.storage.append_turn(claim)
        except RunActive:
            await self._free_session(claim, interrupt=request.multitask == "interrupt")
            turn = await self.storage.append_turn(claim)
        if turn.created:
            log = self._hub.open(turn.ref)
            handle = RunHandle(turn, claim.message, claim.language, log, collections)
            self._runs.add(handle, self._runner.run)
            if self._draining:  # since the check above
                handle.cancel("shutdown")
        return _started(turn)

    async def _free_session(self, claim: TurnClaim, *, interrupt: bool) -> None:
        """End the session's run if its lease has expired or if asked to; else raise :class:`RunActive`."""
        busy = await self.storage.active_run(claim.user_id, claim.session_id)
        if busy is None or (busy.lease_expired and await self._runs.interrupt(busy)):
            return
        if not interrupt:
            raise RunActive(run_id=str(busy.ref.run_id))
        await self._runs.stop(busy.ref.run_id)
        await self._ended(claim.user_id, busy.ref.run_id, INTERRUPT_WAIT_SECONDS)

    def follow(self, user: Principal, run_id: UUID, after: int) -> AsyncGenerator[list[LoggedEvent]]:
        """See :meth:`Subscriptions.follow`."""
        return self.subscriptions.follow(user.id, run_id, after)

    async def answer(self, user: Principal, turn: StartedTurn) -> ChatResponse:
        """The stored end of a turn, awaited. Raises :class:`StorageUnavailable` when the end could not be stored."""
        while True:
            run = await self.storage.run(user.id, turn.run_id)
            if run is None:
                raise NotFound
            if run.status != "running":
                break
            handle = self._runs.handle(turn.run_id)
            await (asyncio.sleep(POLL_SECONDS) if handle is None else handle.done.wait())
        message = await self.message(user, turn.message_id)
        return ChatResponse(
            response=message.content,
            rag_trace=message.rag_trace,
            run_id=str(turn.run_id),
            message_id=str(turn.message_id),
            status=run.status,
            citations=message.citations,
            hitl=None if run.asks is None else hitl_info(run.asks),
            usage=message.usage,
            finish_reason=run.finish_reason,
            flags=message.flags,
            error=run.error,
        )

    # --- runs ---

    async def run_info(self, user: Principal, run_id: UUID) -> RunInfo:
        """A run. Raises :class:`NotFound` when it is not the user's."""
        run = await self._run(user, run_id)
        log = self._hub.get(run_id)
        last_seq = log.last_seq if run.status == "running" and log is not None else run.last_seq
        return RunInfo(
            run_id=str(run_id),
            session_id=run.ref.session_id,
            message_id=str(run.ref.message_id),
            status=run.status,
            finish_reason=run.finish_reason,
            error=run.error,
            last_seq=last_seq,
            created_at=run.created_at,
            finished_at=run.finished_at,
        )

    async def stop(self, user: Principal, run_id: UUID) -> StopResponse:
        """Stop a run; the answer tells its status after a second at most. Stopping an ended run changes nothing.

        Raises :class:`NotFound` when it is not the user's.
        """
        run = await self._run(user, run_id)
        if run.status == "running":
            await self._runs.stop(run_id)
            status = await self._ended(user.id, run_id, STOP_WAIT_SECONDS)
            return StopResponse(run_id=str(run_id), status=status)
        return StopResponse(run_id=str(run_id), status=run.status)

    async def _run(self, user: Principal, run_id: UUID) -> RunRow:
        run = await self.storage.run(user.id, run_id)
        if run is None:
            raise NotFound
        return run

    async def _ended(self, user_id: UUID, run_id: UUID, seconds: float) -> RunStatus:
        """The status of the run after it ended, or after ``seconds``."""
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            handle = self._runs.handle(run_id)
            left = deadline - asyncio.get_running_loop().time()
            if handle is not None and left > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await handle.done.wait()
            run = await self.storage.run(user_id, run_id)
            if run is None:
                return "stopped"
            if run.status != "running" or asyncio.get_running_loop().time() >= deadline:
                return run.status
            await asyncio.sleep(POLL_SECONDS)

    # --- sessions ---

    async def sessions(self, user: Principal, limit: int = LIST_PAGE, cursor: str | None = None) -> SessionListResponse:
        """A page of the user's sessions, newest first."""
        infos, last = await self.storage.session_page(user.id, limit=limit, below=decode_session_key(cursor))
        return SessionListResponse(sessions=infos, next_cursor=encode_session_key(last))

    async def messages(
        self, user: Principal, session_id: str, limit: int = PAGE, before: str | None = None
    ) -> SessionMessagesResponse:
        """A page of a session's messages, ascending; empty for a session that was not used yet."""
        page = await self.storage.message_page(user.id, session_id, limit=limit, before=decode_seq(before))
        messages = await without_deleted([item.info for item in page.messages], user.id, self._existing)
        return SessionMessagesResponse(
            messages=messages,
            next_before=encode_seq(page.messages[0].seq) if page.more else None,
            hitl=None if page.pending is None else hitl_info(page.pending),
        )

    async def dismiss_hitl(self, user: Principal, session_id: str, language: Language = "en") -> HitlDismissResponse:
        """Let no question back wait in a session; fine when none did. Raises :class:`NotFound`."""
        if not await self.storage.dismiss_hitl(user.id, session_id):
            raise NotFound
        return HitlDismissResponse(session_id=session_id, message=say("hitl_dismissed", language))

    async def message(self, user: Principal, message_id: UUID) -> MessageInfo:
        """One message. Raises :class:`NotFound` when it is not the user's."""
        message = await self.storage.message(user.id, message_id)
        if message is None:
            raise NotFound
        return (await without_deleted([message], user.id, self._existing))[0]

    async def rename(self, user: Principal, session_id: str, title: str) -> SessionInfo:
        """Give a session a title on one line. Raises :class:`NotFound`."""
        info = await self.storage.rename(user.id, session_id, title)
        if info is None:
            raise NotFound
        return info

    async def delete(self, user: Principal, session_id: str, language: Language = "en") -> SessionDeleteResponse:
        """Stop a live run, then delete the session with all that hangs on it. Raises :class:`NotFound`."""
        busy = await self.storage.active_run(user.id, session_id)
        if busy is not None:
            await self._runs.stop(busy.ref.run_id)
            await self._ended(user.id, busy.ref.run_id, INTERRUPT_WAIT_SECONDS)
        if not await self.storage.delete_session(user.id, session_id):
            raise NotFound
        return SessionDeleteResponse(session_id=session_id, message=say("session_deleted", language))


async def _all(_: UUID, ids: Collection[UUID]) -> set[UUID]:
    return set(ids)


def _started(turn: ClaimedTurn) -> StartedTurn:
    return StartedTurn(turn.ref.run_id, turn.ref.session_id, turn.ref.message_id)


def _one_key(header: str | None, body: str | None) -> str | None:
    """The idempotency key; given twice it must be the same. Raises :class:`IdempotencyKeyMismatch`."""
    if header is not None and body is not None and header != body:
        raise IdempotencyKeyMismatch
    return body if header is None else header


async def _no_collections(user_id: UUID, names: list[str]) -> list[UUID]:
    raise NotFound


def _request_hash(request: ChatRequest) -> str:
    """What makes two requests the same question: every field but the key."""
    fields = request.model_dump(mode="json", exclude={"client_message_id"})
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()
