"""What the chat room's transactions take and give: plain values, never database rows."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from backend.catalogue import Language
from backend.schemas.chat import (
    Citation,
    ErrorInfo,
    FinishReason,
    Flag,
    MessageInfo,
    PendingHitlState,
    RunStatus,
    UploadedFile,
    Usage,
)


@dataclass(frozen=True, slots=True)
class TurnClaim:
    """What is written when a turn is accepted. ``title`` is used when the session has none."""

    user_id: UUID
    session_id: str
    message: str
    request_hash: str
    client_message_id: str | None
    language: Language
    title: str
    worker_id: str
    lease_seconds: float
    max_runs_per_user: int
    hitl_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunRef:
    """Which run, whose, and where its messages are."""

    run_id: UUID
    user_id: UUID
    session_row_id: UUID
    session_id: str
    human_message_id: UUID
    message_id: UUID


@dataclass(frozen=True, slots=True)
class ClaimedTurn:
    """An accepted turn: ``created`` is false when the key belongs to an earlier, equal request (attach to it)."""

    ref: RunRef
    created: bool
    title: str | None = None
    """The title that this turn gave to its session; only the first turn gives one."""
    answers: PendingHitlState | None = None
    """The question back that was pending in the session: this turn answers it."""
    first_seq: int = 1
    """The place of the human message in the session; 1: no message is earlier."""
    note: str = ""
    """What the session's running note says of them."""
    thread: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the session row keeps of the thread's state, as it is stored."""
    session_title: str | None = None
    """The title that the session has now, whoever gave it."""
    uploads: list[UploadedFile] | None = None
    """What was uploaded since the last message, and belongs to this one; ``None``: the files have not changed."""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Consecutive events of one run as their JSON, first to last."""

    run_id: UUID
    first_seq: int
    events: list[bytes]

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.events) - 1


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended: all that its last transaction writes."""

    status: RunStatus
    content: str
    rag_trace: dict[str, Any] | None = None
    citations: list[Citation] = field(default_factory=list[Citation])
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    flags: list[Flag] = field(default_factory=list[Flag])
    error: ErrorInfo | None = None
    asks: PendingHitlState | None = None
    """The question back that a completed turn ends with; it is pending from then on."""
    thread: dict[str, Any] | None = None
    """What the session row keeps of the thread's state from now on; ``None``: what it had."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as stored."""

    ref: RunRef
    status: RunStatus
    language: Language
    error: ErrorInfo | None
    finish_reason: FinishReason | None
    last_seq: int
    created_at: datetime
    finished_at: datetime | None
    lease_expired: bool
    """Nobody renewed it: a running run is without an owner."""
    asks: PendingHitlState | None = None
    """The question back that it ended with."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message with its place in the session."""

    seq: int
    info: MessageInfo


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages ascending by ``seq``; ``version`` is the session's when they were read, 0 without a session."""

    version: int
    messages: list[StoredMessage]
    more: bool = False
    pending: PendingHitlState | None = None
    """The question back that waits for an answer."""
