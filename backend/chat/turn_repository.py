"""The claim and the end of a turn, one statement each: the one lies between a question and its first token, and while
the user's lock is held the other turns of the user wait.

The functions are in the database (alembic, ``claim_turn_2`` and ``finish_turn_2``): within one statement they take the
lock first and only then read what decides, which no single query can.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

from sqlalchemy import BigInteger, DateTime, String, Text, Uuid, bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection
from uuid_utils.compat import uuid7

from backend.chat.records import EventBatch, RunRef, StoredMessage, TurnClaim, TurnEnd
from backend.chat.thread_record import readable_uploads
from backend.schemas.chat import MessageInfo, MessageStatus, UploadedFile, normalize_rag_trace

Outcome = Literal["claimed", "known", "run_active", "stale_hitl", "too_many_runs", "unauthorized"]


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of a claim. Only ``claimed`` has written anything.

    ``ref`` is the run: the new one, the one that has the key (``known``, with the hash of its request), or the one that
    runs in the session (``run_active``). ``title`` is set if this turn gave it; ``meta`` is as it was before.
    """

    outcome: Outcome
    ref: RunRef
    request_hash: str | None
    version: int
    previous_version: int
    first_seq: int
    title: str | None
    meta: dict[str, Any]
    written_at: datetime
    thread: dict[str, Any]
    session_title: str | None
    uploads: list[UploadedFile] | None


_CLAIM = (
    text(
        """
        select * from claim_turn_2(
            :user, :session, :title, :message, :language, :key, :hash, :hitl_id,
            :worker, :lease, :max_runs, :run, :human, :answer
        )
        """
    )
    .bindparams(*(bindparam(name, type_=Uuid) for name in ("user", "run", "human", "answer")))
    .columns(
        outcome=String,
        run=Uuid,
        human=Uuid,
        answer=Uuid,
        hash=String,
        session_row=Uuid,
        new_version=BigInteger,
        old_version=BigInteger,
        place=BigInteger,
        given_title=String,
        meta=JSONB,
        written_at=DateTime(timezone=True),
        thread=JSONB,
        session_title=String,
        uploads=JSONB,
    )
)


async def claim_turn(connection: AsyncConnection, claim: TurnClaim) -> Claimed:
    """Accept the turn, or say why not: session, run with a fresh lease, human message and pending answer."""
    values = {
        "user": claim.user_id,
        "session": claim.session_id,
        "title": claim.title,
        "message": claim.message,
        "language": claim.language,
        "key": claim.client_message_id,
        "hash": claim.request_hash,
        "hitl_id": claim.hitl_id,
        "worker": claim.worker_id,
        "lease": claim.lease_seconds,
        "max_runs": claim.max_runs_per_user,
        "run": uuid7(),
        "human": uuid7(),
        "answer": uuid7(),
    }
    row = (await connection.execute(_CLAIM, values)).one()
    return Claimed(
        cast("Outcome", row.outcome),
        RunRef(row.run, claim.user_id, row.session_row, claim.session_id, row.human, row.answer),
        row.hash,
        row.new_version,
        row.old_version,
        row.place,
        row.given_title,
        row.meta or {},
        row.written_at,
        row.thread or {},
        row.session_title,
        None if row.uploads is None else readable_uploads(row.uploads),
    )


def turn_messages(claimed: Claimed, message: str) -> list[StoredMessage]:
    """The two messages of a claimed turn as they were stored."""
    ref = claimed.ref
    common: dict[str, Any] = {"timestamp": claimed.written_at, "run_id": str(ref.run_id)}
    human = MessageInfo(
        type="human",
        content=message,
        id=str(ref.human_message_id),
        status="completed",
        attachments=claimed.uploads or [],
        **common,
    )
    answer = MessageInfo(type="ai", content="", id=str(ref.message_id), status="pending", **common)
    return [StoredMessage(claimed.first_seq, human), StoredMessage(claimed.first_seq + 1, answer)]


@dataclass(frozen=True, slots=True)
class Finished:
    """The session of a turn that has just ended, and its answer as it was stored."""

    version: int
    previous_version: int
    answer: StoredMessage


_JSON = JSONB(none_as_null=True)
_FINISH = (
    text(
        """
        select * from finish_turn_2(
            :user, :session_row, :run, :message, :worker, :status, :error, :finish_reason, :asks, :last_seq, :content,
            :trace, :citations, :usage, :flags, :events_first, :events_last, :events, :thread
        )
        """
    )
    .bindparams(
        *(bindparam(name, type_=Uuid) for name in ("user", "session_row", "run", "message")),
        *(bindparam(name, type_=_JSON) for name in ("error", "asks", "trace", "citations", "usage", "flags", "thread")),
        *(bindparam(name, type_=BigInteger) for name in ("last_seq", "events_first", "events_last")),
        bindparam("events", type_=Text),
    )
    .columns(new_version=BigInteger, old_version=BigInteger, place=BigInteger, written_at=DateTime(timezone=True))
)


async def finish_turn(
    connection: AsyncConnection, ref: RunRef, end: TurnEnd, tail: EventBatch | None, last_seq: int, *, worker_id: str
) -> Finished | None:
    """End the turn: run, answer, session and the events not stored yet. ``None``, with nothing written, when the run is
    no longer running or not this worker's."""
    trace = normalize_rag_trace(end.rag_trace)
    values = {
        "user": ref.user_id,
        "session_row": ref.session_row_id,
        "run": ref.run_id,
        "message": ref.message_id,
        "worker": worker_id,
        "status": end.status,
        "error": end.error.model_dump(mode="json") if end.error else None,
        "finish_reason": end.finish_reason,
        "asks": None if end.asks is None else end.asks.model_dump(mode="json"),
        "last_seq": last_seq,
        "content": end.content,
        "trace": trace,
        "citations": [item.model_dump(mode="json") for item in end.citations],
        "usage": end.usage.model_dump() if end.usage else None,
        "flags": list(end.flags),
        "events_first": None if tail is None else tail.first_seq,
        "events_last": None if tail is None else tail.last_seq,
        "events": None if tail is None else b"\n".join(tail.events).decode(),
        "thread": end.thread,
    }
    row = (await connection.execute(_FINISH, values)).first()
    if row is None:
        return None
    answer = MessageInfo(
        type="ai",
        content=end.content,
        timestamp=row.written_at,
        rag_trace=trace,
        id=str(ref.message_id),
        status=cast("MessageStatus", end.status),
        citations=end.citations,
        run_id=str(ref.run_id),
        usage=end.usage,
        finish_reason=end.finish_reason,
        flags=end.flags,
    )
    return Finished(row.new_version, row.old_version, StoredMessage(row.place, answer))
