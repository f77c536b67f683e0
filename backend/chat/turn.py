"""One turn, from the claimed run to its last event. Both chat routes share this one path."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import UUID

from langchain_core.messages import BaseMessage
from sqlalchemy.exc import DBAPIError

from backend.catalogue import Language, say
from backend.chat.citations import build_citations
from backend.chat.config import ChatConfig
from backend.chat.events import EventHub, RunLog
from backend.chat.hitl import question_back, question_text, resume_of
from backend.chat.memory import most_tokens_of, prompt_for
from backend.chat.model_titles import ModelTitles
from backend.chat.notes import NoteKeeper
from backend.chat.records import ClaimedTurn, EventBatch, RunRef, TurnEnd
from backend.chat.request_context import ChatRequestContext
from backend.chat.runtime import AgentRuntime, BoundAgent
from backend.chat.storage import ConversationStorage
from backend.chat.stream import STEP_BREAK, AnswerStream
from backend.chat.tail import numbered, tail_events
from backend.chat.thread_record import ThreadRecord
from backend.errors import AppError, StorageUnavailable
from backend.log import bind_run, get_logger
from backend.metrics import count_turn
from backend.sandbox.base import SandboxError
from backend.schemas.chat import (
    ContentEvent,
    ErrorEvent,
    ErrorInfo,
    PendingHitlState,
    RunStartedEvent,
    SessionTitleEvent,
)
from backend.tracing import stage

RETRY_SECONDS = 0.3
CANCEL_SECONDS = 2.0
_TRIES_WITH_EVENTS = 3
_KEEP_THREAD = ("completed", "stopped")
"""Ends that a user knows of: after any other the thread is as it was before the turn."""
_log = get_logger(__name__)

Cause = Literal["stop", "shutdown", "storage", "lost"]
EventQueue = asyncio.Queue[Any]
"""Events of one turn on their way to its log; ``None`` is the end."""


@dataclass(slots=True, eq=False)
class RunHandle:
    """A run that this worker owns."""

    turn: ClaimedTurn
    message: str
    language: Language
    log: RunLog
    collections: Collection[UUID] | None = None
    """The collections of documents that the question is asked of; ``None``: all documents."""

    cause: Cause | None = None
    agent: asyncio.Task[None] | None = None
    task: asyncio.Task[None] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    thread: ThreadRecord = field(init=False)
    """What the thread keeps, as this turn changes it."""

    prompt_tokens: int = 0
    """As many tokens as question and earlier turns can have together."""

    cancelled_at: float | None = None
    """When the answer was cut short, in the time of the loop; ``None`` for one that had ended by itself."""

    def __post_init__(self) -> None:
        self.thread = ThreadRecord(self.turn.thread, self.turn.session_title)

    @property
    def ref(self) -> RunRef:
        return self.turn.ref

    def cancel(self, cause: Cause) -> None:
        """End the answer now; the first cause counts. The turn then stores what there is."""
        if self.cause is not None or self.log.sealed:
            return
        self.cause = cause
        if self.agent is None or self.agent.cancel():
            self.cancelled_at = asyncio.get_running_loop().time()


class TurnRunner:
    """Runs claimed turns. ``lease_left()`` gives the seconds for which this worker's leases are sure to hold."""

    def __init__(
        self,
        storage: ConversationStorage,
        hub: EventHub,
        runtime: AgentRuntime,
        notes: NoteKeeper,
        titles: ModelTitles,
        config: ChatConfig,
        *,
        count_tokens: Callable[[str], int],
        lease_left: Callable[[], float],
        worker_id: str,
    ) -> None:
        self._storage = storage
        self._hub = hub
        self._runtime = runtime
        self._notes = notes
        self._titles = titles
        self._config = config
        self._count_tokens = count_tokens
        self._lease_left = lease_left
        self._worker_id = worker_id

    async def run(self, handle: RunHandle) -> None:
        """Produce the answer, store its end, then let subscribers see that end. Never raises, is never cancelled."""
        ref = handle.ref
        with bind_run(str(ref.run_id), ref.session_id), stage("turn", run_id=str(ref.run_id)):
            ctx, queue, pump = self._open_context(handle)
            answer = AnswerStream(lambda number: 1 <= number <= _retrieved(ctx), self._config.allowed_link_hosts)
            try:
                error = await self._produce(handle, ctx, queue, answer)
                ctx.close()
                queue.put_nowait(None)
                await pump
                end = _turn_end(handle, ctx, answer, error)
                await self._finish(handle, end)
            finally:
                handle.done.set()
            if handle.turn.title is not None and end.status == "completed":
                self._titles.schedule(ref, handle.message, end.content)
            most_tokens = handle.prompt_tokens + most_tokens_of([answer.text])
            if not self._notes.all_shown(handle.turn.first_seq + 1, most_tokens):
                self._notes.schedule(ref)

    def _open_context(self, handle: RunHandle) -> "tuple[ChatRequestContext, EventQueue, asyncio.Task[None]]":
        ref, queue = handle.ref, EventQueue()
        handle.log.append(
            RunStartedEvent(
                run_id=str(ref.run_id),
                session_id=ref.session_id,
                message_id=str(ref.message_id),
                user_message_id=str(ref.human_message_id),
            )
        )
        thread_id = f"{ref.user_id}/{ref.session_row_id}"
        ctx = ChatRequestContext.for_stream(
            ref.user_id, ref.session_id, queue, language=handle.language, thread_id=thread_id
        )
        ctx.collections = handle.collections
        return ctx, queue, asyncio.create_task(self._pump(queue, handle))

    async def _pump(self, queue: EventQueue, handle: RunHandle) -> None:
        """Events in the order of their arrival, from steps of any thread and from the model."""
        while (event := await queue.get()) is not None:
            if await self._still_ours(handle):
                handle.log.append(event)

    async def _still_ours(self, handle: RunHandle) -> bool:
        """Whether an event may be shown. A worker that was frozen for a whole lease waits until it knows: another may
        have ended the run, with a text that must not differ from what anybody has seen."""
        while self._lease_left() <= 0 and handle.cause is None:  # noqa: ASYNC110  # a lease is a time, not an event
            await asyncio.sleep(RETRY_SECONDS)
        return self._lease_left() > 0 and handle.cause != "lost"

    async def _produce(
        self,
        handle: RunHandle,
        ctx: ChatRequestContext,
        queue: EventQueue,
        answer: AnswerStream,
    ) -> AppError | None:
        """Run the agent to its end; what it sent is in ``answer``. Gives the error that ended it, if one did."""
        handle.agent = asyncio.create_task(self._answer(handle, ctx, queue, answer))
        if handle.cause is not None:  # stopped before the first step
            handle.agent.cancel()
        await _settled(handle)
        if text := answer.flush():
            queue.put_nowait(ContentEvent(content=text))
        if handle.cancelled_at is not None:  # whatever it made of the cancellation
            return None
        error = handle.agent.exception()
        if error is None or isinstance(error, AppError):
            return error
        _log.error("turn_failed", exc_info=error)
        return AppError()

    async def _answer(
        self,
        handle: RunHandle,
        ctx: ChatRequestContext,
        queue: EventQueue,
        answer: AnswerStream,
    ) -> None:
        ctx.emit_rag_step("📨", say("step_received", handle.language))
        if handle.turn.title is not None:
            event = SessionTitleEvent(title=handle.turn.title, session_id=handle.ref.session_id)
            asyncio.get_running_loop().call_soon(queue.put_nowait, event)
        if handle.turn.uploads is not None:
            asyncio.get_running_loop().call_soon(queue.put_nowait, handle.thread.uploaded)
        with stage("history"):
            messages = await self._prompt(handle)
        ctx.note = handle.turn.note if self._config.context_messages else ""
        agent = self._runtime.create_agent_for_request(ctx)
        if handle.turn.answers is not None:
            messages += await agent.resumed(resume_of(handle.turn.answers, handle.message))
        try:
            with stage("agent"):
                async for mode, chunk in agent.astream(messages, handle.thread.initial):
                    if text := answer.feed(mode, chunk):
                        queue.put_nowait(ContentEvent(content=text))
                    if mode == "updates":
                        for event in handle.thread.feed(chunk):
                            queue.put_nowait(event)
        finally:
            await _release(agent, handle)
        if text := answer.closing(handle.language):
            queue.put_nowait(ContentEvent(content=text))

    async def _prompt(self, handle: RunHandle) -> list[BaseMessage]:
        """The earlier turns that fit, and the question. What a provider has withheld it would refuse to read again, in
        every later turn: such an answer is left out, and with it its question."""
        limit = self._config.context_messages
        stored = await self._storage.recent_turns(handle.ref, limit) if limit and handle.turn.first_seq > 1 else []
        history = [message for message in stored if message.finish_reason != "content_filter"]
        handle.prompt_tokens = most_tokens_of([handle.message, *(message.content for message in history)])
        budget = self._runtime.history_tokens or self._config.prompt_max_tokens
        return await prompt_for(
            history, handle.message, most=handle.prompt_tokens, budget=budget, count_tokens=self._count_tokens
        )

    async def _finish(self, handle: RunHandle, end: TurnEnd) -> None:
        """Commit the end, then send it. A run that this worker lost is left to who has it."""
        pending = await self._hub.seal(handle.log)
        if handle.cause == "lost":
            self._close_unstored(handle)
            return
        tail = numbered(handle.ref, tail_events(handle.ref, end), handle.log.last_seq + 1)
        unstored = tail if pending is None else EventBatch(tail.run_id, pending.first_seq, pending.events + tail.events)
        try:
            with stage("finish"):
                stored = await self._commit(handle, end, unstored)
        except StorageUnavailable:
            self._close_unstored(handle)
            return
        if not stored:
            self._hub.discard(handle.log)
            return
        _count(end)
        handle.log.extend(tail)
        self._hub.end(handle.log)

    async def _commit(self, handle: RunHandle, end: TurnEnd, unstored: EventBatch) -> bool:
        """The last transaction, tried again until the lease ends.

        If only the events cannot be stored, the answer is stored without them: replay then sends it as a ``gap``.
        """
        tries = 0
        while True:
            tries += 1
            events = unstored if tries <= _TRIES_WITH_EVENTS else None
            try:
                return await self._storage.finish_turn(
                    handle.ref, end, events, unstored.last_seq, worker_id=self._worker_id
                )
            except StorageUnavailable:
                if self._lease_left() <= 0:
                    raise
                _log.warning("finish_retried", tries=tries)
                await asyncio.sleep(RETRY_SECONDS)
            except DBAPIError:  # not a matter of time
                if events is None:
                    raise
                _log.exception("events_refused")
                tries = _TRIES_WITH_EVENTS

    def _close_unstored(self, handle: RunHandle) -> None:
        code = StorageUnavailable.code
        content = say(code, handle.language)
        handle.log.append(ErrorEvent(code=code, content=content, retryable=True))
        self._hub.end(handle.log, cut=True)


def _count(end: TurnEnd) -> None:
    usage = end.usage
    count_turn(
        end.status,
        None if end.error is None else end.error.code,
        input_tokens=0 if usage is None else usage.input_tokens,
        output_tokens=0 if usage is None else usage.output_tokens,
    )
    _log.info("turn_ended", status=end.status, code=None if end.error is None else end.error.code, flags=end.flags)


async def _release(agent: BoundAgent, handle: RunHandle) -> None:
    """Give the turn's sandbox back, whatever ended the turn. One that is not given back ends with its lease."""
    try:
        update = await agent.release()
    except (TimeoutError, OSError, SandboxError):
        _log.warning("sandbox_not_released", exc_info=True)
        return
    handle.thread.feed({"release": update})


async def _settled(handle: RunHandle) -> None:
    """Wait for the agent; once cancelled it has ``CANCEL_SECONDS``, then the turn ends without it."""
    assert handle.agent is not None
    while not (await asyncio.wait([handle.agent], timeout=CANCEL_SECONDS))[0]:
        now = asyncio.get_running_loop().time()
        if handle.cancelled_at is not None and now - handle.cancelled_at >= CANCEL_SECONDS:
            _log.error("agent_ignored_cancellation")
            return


def _retrieved(ctx: ChatRequestContext) -> int:
    stored = ctx.peek_rag_trace()
    trace = stored.rag_trace if stored is not None else None
    return len((trace or {}).get("retrieved_chunks", []))


def _turn_end(handle: RunHandle, ctx: ChatRequestContext, answer: AnswerStream, error: AppError | None) -> TurnEnd:
    stored = ctx.take_rag_trace()
    answer.count(ctx.tool_usage)
    status, info = _outcome(handle, error)
    completed = status == "completed"
    asks = question_back(stored, handle.message, handle.turn.answers, handle.language) if completed else None
    trace = stored.rag_trace if stored is not None else None
    end = TurnEnd(
        status=status,
        content=answer.text,
        rag_trace=trace,
        citations=build_citations(answer.cited, answer.text, trace),
        usage=answer.usage,
        finish_reason=(answer.finish_reason or "stop") if completed else None,
        flags=answer.flags if completed else [],
        error=info,
        thread=handle.thread.stored if status in _KEEP_THREAD else None,
    )
    return end if asks is None else _asking(end, asks, handle.language)


def _asking(end: TurnEnd, asks: PendingHitlState, language: Language) -> TurnEnd:
    """A turn that ends with a question back: its text is stored and not streamed, after what a model said before."""
    question = question_text(asks, language)
    asked = {"hitl_prompt": asks.prompt, "hitl_options": asks.options}
    return replace(
        end,
        content=f"{end.content}{STEP_BREAK}{question}" if end.content.strip() else question,
        rag_trace={**(end.rag_trace or {}), **asked},
        citations=[],
        finish_reason="clarification",
        flags=[flag for flag in end.flags if flag != "empty_answer"],
        asks=asks,
    )


def _outcome(
    handle: RunHandle, error: AppError | None
) -> tuple[Literal["completed", "stopped", "failed", "interrupted"], ErrorInfo | None]:
    if error is not None:
        return "failed", error_info(error.code, handle.language, error.retryable, error.retry_after)
    if handle.cancelled_at is None:
        return "completed", None
    if handle.cause == "stop":
        return "stopped", None
    code, status = (
        ("storage_unavailable", "failed") if handle.cause == "storage" else ("server_shutdown", "interrupted")
    )
    return status, error_info(code, handle.language, True, None)


def error_info(code: str, language: Language, retryable: bool, retry_after: float | None) -> ErrorInfo:
    """What a client is told of an error: the code and a text of ours, never the exception's."""
    return ErrorInfo(code=code, content=say(code, language), retryable=retryable, retry_after=retry_after)
