"""SQL of the claim, in two statements after the user's lock: it lies between a question and its first token."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    String,
    Uuid,
    bindparam,
    case,
    func,
    insert,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from backend.chat.records import RunRef, StoredMessage, TurnClaim
from backend.infra.database.tables import ChatMessage, ChatSession, Run, session_version
from backend.schemas.chat import MessageInfo


@dataclass(frozen=True, slots=True)
class ClaimedSession:
    """A session whose row this transaction has locked, and made if it was new, with the two messages counted in.

    ``first_seq`` is the place of the human message; ``title`` is set if this turn gave it. ``busy`` is the run that is
    running in the session, ``active`` counts those of the user; ``meta`` is as it was.
    """

    id: UUID
    version: int
    previous_version: int
    first_seq: int
    title: str | None
    meta: dict[str, Any]
    busy: UUID | None
    active: int


_RUNNING = literal_column("'running'", String)
"""A literal, so that a prepared statement can use the partial indexes."""
_BUSY: ColumnElement[UUID] = (
    select(Run.id)
    .where(Run.session_row_id == literal_column("chat_sessions.id", Uuid), Run.status == _RUNNING)  # the row's own
    .scalar_subquery()
    .label("busy")
)
_ACTIVE: ColumnElement[int] = (
    select(func.count())
    .select_from(Run)
    .where(Run.user_id == bindparam("user"), Run.status == _RUNNING)
    .scalar_subquery()
    .label("active")
)
_UPSERT = upsert(ChatSession).values(
    user_id=bindparam("user"),
    session_id=bindparam("session"),
    title=bindparam("title"),
    title_source="rule",
    last_seq=2,
    message_count=2,
)
_CLAIM = _UPSERT.on_conflict_do_update(
    index_elements=[ChatSession.user_id, ChatSession.session_id],
    set_={
        "version": session_version.next_value(),
        "updated_at": func.clock_timestamp(),
        "last_seq": ChatSession.last_seq + 2,
        "message_count": ChatSession.message_count + 2,
        "title": func.coalesce(ChatSession.title, _UPSERT.excluded.title),
        "title_source": case((ChatSession.title.is_(None), "rule"), else_=ChatSession.title_source),
    },
).returning(
    ChatSession.id,
    ChatSession.version,
    ChatSession.last_seq,
    ChatSession.meta,
    literal_column("coalesce(old.version, 0)", BigInteger).label("previous_version"),
    literal_column("old.title is null", Boolean).label("titled"),
    _BUSY,
    _ACTIVE,
)
"""``old`` is the row before (PostgreSQL 18), all null for a new one."""

_RUN = (
    insert(Run)
    .values(
        id=bindparam("run"),
        session_row_id=bindparam("row"),
        user_id=bindparam("user"),
        client_message_id=bindparam("key"),
        request_hash=bindparam("hash"),
        worker_id=bindparam("worker"),
        lease_expires_at=func.now() + func.make_interval(0, 0, 0, 0, 0, 0, bindparam("lease")),
        human_message_id=bindparam("human"),
        message_id=bindparam("answer"),
        language=bindparam("language"),
    )
    .returning(Run.id)
    .cte("run")
)


def _message(name: str, seq: Any, kind: str, content: Any, status: str) -> dict[str, Any]:
    place: dict[str, Any] = {"session_row_id": bindparam("row"), "run_id": bindparam("run"), "seq": seq}
    return {**place, "id": bindparam(name), "type": kind, "content": content, "status": status}


_HUMAN = (
    insert(ChatMessage)
    .values(_message("human", bindparam("seq"), "human", bindparam("message"), "completed"))
    .returning(ChatMessage.id)
    .cte("human")
)
_WRITE = (  # one insert of two rows would be compiled anew each time
    insert(ChatMessage)
    .values(_message("answer", bindparam("seq") + 1, "ai", "", "pending"))
    .add_cte(_RUN, _HUMAN)
    .returning(ChatMessage.created_at)
)


async def claim_session(connection: AsyncConnection, claim: TurnClaim) -> ClaimedSession:
    """The session of ``claim``, created if new, with room for its two messages. The caller holds the user's lock, so
    that what is said of running runs stays true until the commit."""
    values = {"user": claim.user_id, "session": claim.session_id, "title": claim.title}
    row: Any = (await connection.execute(_CLAIM, values)).one()
    return ClaimedSession(
        row.id,
        row.version,
        row.previous_version,
        row.last_seq - 1,
        claim.title if row.titled else None,
        row.metadata,
        row.busy,
        row.active,
    )


async def write_turn(connection: AsyncConnection, ref: RunRef, claim: TurnClaim, first_seq: int) -> datetime:
    """The run with a fresh lease, the human message at ``first_seq`` and the pending answer after it; their time."""
    values = {
        "run": ref.run_id,
        "row": ref.session_row_id,
        "user": ref.user_id,
        "key": claim.client_message_id,
        "hash": claim.request_hash,
        "worker": claim.worker_id,
        "lease": claim.lease_seconds,
        "human": ref.human_message_id,
        "answer": ref.message_id,
        "language": claim.language,
        "seq": first_seq,
        "message": claim.message,
    }
    return (await connection.execute(_WRITE, values)).scalar_one()


def turn_messages(ref: RunRef, claim: TurnClaim, first_seq: int, written_at: datetime) -> list[StoredMessage]:
    """The two messages of a claimed turn as they were stored."""
    human = MessageInfo(
        type="human",
        content=claim.message,
        timestamp=written_at,
        id=str(ref.human_message_id),
        status="completed",
        run_id=str(ref.run_id),
    )
    answer = MessageInfo(
        type="ai", content="", timestamp=written_at, id=str(ref.message_id), status="pending", run_id=str(ref.run_id)
    )
    return [StoredMessage(first_seq, human), StoredMessage(first_seq + 1, answer)]
