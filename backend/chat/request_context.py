"""What belongs to one turn: who asks, where steps go, what retrieval found, what may still be called."""

import asyncio
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import UUID

from langchain_core.messages.ai import UsageMetadata

from backend.catalogue import Language
from backend.schemas.chat import ChatEvent, HitlResumeState, RagStep, RagStepEvent, normalize_rag_trace
from backend.text import clean_text

KNOWLEDGE_CALLS_PER_TURN = 1


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """The normalized trace of a turn and, when retrieval asks back, the snapshot it resumes from."""

    rag_trace: dict[str, Any] | None
    hitl_resume_state: HitlResumeState | None


class ChatRequestContext:
    """State and event outlet of one turn. Every method may be called from any thread.

    ``user_id``, ``session_id``, ``thread_id`` and ``language`` never change; ``note`` and ``collections`` are
    set before the agent runs, ``passages_shown``, ``tool_usage`` and ``sandbox_id`` by it. ``output_queue`` is ``None``
    for a turn that nobody watches and after :meth:`close`.
    """

    def __init__(
        self,
        user_id: UUID,
        session_id: str,
        *,
        language: Language = "en",
        thread_id: str | None = None,
        output_queue: asyncio.Queue[ChatEvent] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.user_id = user_id
        self.session_id = session_id
        self.thread_id = thread_id
        self.sandbox_id: str | None = None
        self.language: Language = language
        self.output_queue = output_queue
        self._loop = loop
        self._lock = threading.Lock()
        self._active = True
        self._stored: StoredTrace | None = None
        self._knowledge_calls = 0
        self.passages_shown: int | None = None
        self.tool_usage: UsageMetadata | None = None
        self.note = ""
        self.collections: Collection[UUID] | None = None
        self._started = self._last_step = time.monotonic()

    @classmethod
    def for_sync(
        cls, user_id: UUID, session_id: str, *, language: Language = "en", thread_id: str | None = None
    ) -> Self:
        """The context of a turn without a stream: steps go nowhere."""
        return cls(user_id, session_id, language=language, thread_id=thread_id)

    @classmethod
    def for_stream(
        cls,
        user_id: UUID,
        session_id: str,
        output_queue: asyncio.Queue[ChatEvent],
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        language: Language = "en",
        thread_id: str | None = None,
    ) -> Self:
        """The context of a watched turn. ``loop`` owns the queue; by default the running one.

        Raises ``RuntimeError`` without ``loop`` outside a running loop.
        """
        owner = loop if loop is not None else asyncio.get_running_loop()
        return cls(user_id, session_id, language=language, thread_id=thread_id, output_queue=output_queue, loop=owner)

    def emit_rag_step(
        self, icon: str, label: str, detail: str = "", *, group: str | None = None, group_label: str | None = None
    ) -> None:
        """Sends one retrieval step with its times to the stream. Never raises, never blocks.

        The event has ``seq`` 0; whoever drains the queue numbers it. A full queue or a closed loop drops it.
        """
        with self._lock:
            queue, loop = self.output_queue, self._loop
            if not self._active or queue is None or loop is None:
                return
            now = time.monotonic()
            step = RagStep(
                icon=clean_text(icon),
                label=clean_text(label),
                detail=clean_text(detail),
                elapsed_ms=_milliseconds(now - self._started),
                stage_elapsed_ms=_milliseconds(now - self._last_step),
                group=None if group is None else clean_text(group),
                group_label=None if group_label is None else clean_text(group_label),
            )
            self._last_step = now
            # Inside the lock, so that the order in the queue is the order of the times; the call does not wait.
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_offer, queue, RagStepEvent(step=step))

    def store_rag_trace(
        self, trace: dict[str, Any] | None, hitl_resume_state: HitlResumeState | dict[str, Any] | None = None
    ) -> None:
        """Keeps the normalized ``trace`` and the snapshot, replacing what was kept; nothing once closed.

        Raises ``ValueError`` for a snapshot that is not a ``HitlResumeState``: such a turn could not be resumed.
        """
        kept = normalize_rag_trace(trace)
        snapshot = None if hitl_resume_state is None else HitlResumeState.model_validate(hitl_resume_state)
        with self._lock:
            if self._active:
                self._stored = None if kept is None and snapshot is None else StoredTrace(kept, snapshot)

    def take_rag_trace(self) -> StoredTrace | None:
        """Hands out what is kept and forgets it."""
        with self._lock:
            stored, self._stored = self._shown_evidence(), None
            return stored

    def peek_rag_trace(self) -> StoredTrace | None:
        """What is kept, left in place."""
        with self._lock:
            return self._shown_evidence()

    def _shown_evidence(self) -> StoredTrace | None:
        """What is kept, its evidence cut to what a model saw: nothing else is evidence of this turn."""
        stored, shown = self._stored, self.passages_shown
        if stored is None or stored.rag_trace is None or shown is None:
            return stored
        evidence = stored.rag_trace.get("retrieved_chunks", [])
        return replace(stored, rag_trace={**stored.rag_trace, "retrieved_chunks": evidence[:shown]})

    @property
    def asks_back(self) -> bool:
        """Whether a snapshot is kept: the turn ends with a question to the user."""
        stored = self.peek_rag_trace()
        return stored is not None and stored.hitl_resume_state is not None

    def reset_knowledge_tool_budget(self) -> None:
        """Allows the knowledge tool once more."""
        with self._lock:
            self._knowledge_calls = 0

    def acquire_knowledge_tool_slot(self) -> bool:
        """True for the first call of a turn, False for every other and once closed."""
        with self._lock:
            if not self._active or self._knowledge_calls >= KNOWLEDGE_CALLS_PER_TURN:
                return False
            self._knowledge_calls += 1
            return True

    def close(self) -> None:
        """Ends the turn: no further step or trace is taken; queue and loop are released. May be repeated."""
        with self._lock:
            self._active = False
            self.output_queue = None
            self._loop = None


def _offer(queue: asyncio.Queue[ChatEvent], event: ChatEvent) -> None:
    with suppress(asyncio.QueueFull):  # a step is not content
        queue.put_nowait(event)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
