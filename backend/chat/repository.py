"""SQL of sessions and messages; each function runs inside the caller's transaction and names the owner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import (
    ColumnElement,
    Row,
    bindparam,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from backend.chat.records import StoredMessage
from backend.infra.database.tables import ChatMessage, ChatSession, PurgeOutbox, User, session_version
from backend.schemas.chat import (
    Citation,
    FinishReason,
    Flag,
    MessageInfo,
    SessionInfo,
    UploadedFile,
    Usage,
    normalize_rag_trace,
)

AnyRow = Row[*tuple[Any, ...]]
_next_version = session_version.next_value()


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as its writers see it, its row locked."""

    id: UUID
    version: int


@dataclass(frozen=True, slots=True)
class SessionHead:
    """A session as its readers see it first."""

    id: UUID
    version: int
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Where a page of the session list ends: the next one starts below."""

    updated_at: datetime
    id: UUID


_LOCK_USER = (
    update(User)
    .where(User.id == bindparam("user"))
    .values(sessions_version=_next_version)
    .returning(User.sessions_version)
)


async def lock_user(connection: AsyncConnection, user_id: UUID) -> int | None:
    """Serialize the writers of one user's sessions and raise the version of the list, which is given.

    ``None`` when the user is gone.

    Every transaction that writes a session takes this lock first, so the order
    (user, session, run) is the same everywhere.
    """
    return (await connection.execute(_LOCK_USER, {"user": user_id})).scalar()


async def list_version(connection: AsyncConnection, user_id: UUID) -> int:
    """The version of the user's session list; 0 for a user without one."""
    query = select(User.sessions_version).where(User.id == user_id)
    return (await connection.execute(query)).scalar() or 0


_TOUCH = (
    upsert(ChatSession)
    .values(user_id=bindparam("user"), session_id=bindparam("session"))
    .on_conflict_do_update(
        index_elements=[ChatSession.user_id, ChatSession.session_id],
        set_={"version": _next_version, "updated_at": func.clock_timestamp()},
    )
    .returning(ChatSession.id, ChatSession.version)
)


async def touch_session(connection: AsyncConnection, user_id: UUID, session_id: str) -> SessionRow:
    """The session, created if new, locked, with a new version and ``updated_at``."""
    row = (await connection.execute(_TOUCH, {"user": user_id, "session": session_id})).one()
    return SessionRow(row.id, row.version)


async def session_head(connection: AsyncConnection, user_id: UUID, session_id: str) -> SessionHead | None:
    """What is read of a session before its messages, or ``None`` when it was not used yet."""
    row = (
        await connection.execute(
            select(ChatSession.id, ChatSession.version, ChatSession.meta).where(
                ChatSession.user_id == user_id, ChatSession.session_id == session_id
            )
        )
    ).first()
    return None if row is None else SessionHead(row.id, row.version, row.metadata)


async def session_meta(connection: AsyncConnection, user_id: UUID, session_id: str) -> dict[str, Any]:
    """The metadata of a session; empty when it was not used yet."""
    query = select(ChatSession.meta).where(ChatSession.user_id == user_id, ChatSession.session_id == session_id)
    return (await connection.execute(query)).scalar() or {}


async def update_session(connection: AsyncConnection, row_id: UUID, **values: Any) -> None:
    """Set columns of a session whose row is locked by this transaction."""
    await connection.execute(update(ChatSession).where(ChatSession.id == row_id).values(**values))


async def drop_meta(connection: AsyncConnection, row_id: UUID, key: str) -> None:
    """Remove a key of the metadata of a session whose row is locked by this transaction."""
    await update_session(connection, row_id, meta=ChatSession.meta.op("-")(key))


_MESSAGE_COLUMNS = (
    ChatMessage.id,
    ChatMessage.seq,
    ChatMessage.type,
    ChatMessage.content,
    ChatMessage.status,
    ChatMessage.run_id,
    ChatMessage.rag_trace,
    ChatMessage.citations,
    ChatMessage.usage,
    ChatMessage.finish_reason,
    ChatMessage.flags,
    ChatMessage.attachments,
    ChatMessage.created_at,
)


_JSON_FIELDS: dict[str, TypeAdapter[Any]] = {
    "usage": TypeAdapter(Usage | None),
    "finish_reason": TypeAdapter(FinishReason | None),
}
_JSON_LISTS: dict[str, TypeAdapter[Any]] = {
    "citations": TypeAdapter(Citation),
    "flags": TypeAdapter(Flag),
    "attachments": TypeAdapter(UploadedFile),
}


def _message(row: AnyRow) -> StoredMessage:
    fields: dict[str, Any] = {
        "type": row.type,
        "content": row.content,
        "timestamp": row.created_at,
        "rag_trace": normalize_rag_trace(row.rag_trace),
        "id": str(row.id),
        "status": row.status,
        "citations": row.citations,
        "run_id": str(row.run_id) if row.run_id else None,
        "usage": row.usage,
        "finish_reason": row.finish_reason,
        "flags": row.flags,
        "attachments": row.attachments,
    }
    try:
        return StoredMessage(row.seq, MessageInfo(**fields))
    except ValidationError:  # a row of another version: what cannot be read is left out, the message is not
        return StoredMessage(row.seq, MessageInfo(**fields | _readable(fields)))


def _readable(fields: dict[str, Any]) -> dict[str, Any]:
    """Those of the row's JSON values that have the declared form."""
    kept: dict[str, Any] = {
        name: fields[name] if _fits(kind, fields[name]) else None for name, kind in _JSON_FIELDS.items()
    }
    for name, kind in _JSON_LISTS.items():
        items = cast(list[Any], fields[name]) if isinstance(fields[name], list) else []
        kept[name] = [item for item in items if _fits(kind, item)]
    return kept


def _fits(kind: TypeAdapter[Any], value: Any) -> bool:
    try:
        kind.validate_python(value)
    except ValidationError:
        return False
    return True


async def messages(
    connection: AsyncConnection, session_row_id: UUID, *, limit: int | None, before: int | None = None
) -> list[StoredMessage]:
    """The last ``limit`` messages below ``before``, ascending."""
    query = select(*_MESSAGE_COLUMNS).where(ChatMessage.session_row_id == session_row_id)
    if before is not None:
        query = query.where(ChatMessage.seq < before)
    rows = (await connection.execute(query.order_by(ChatMessage.seq.desc()).limit(limit))).all()
    return [_message(row) for row in reversed(rows)]


async def message(connection: AsyncConnection, user_id: UUID, message_id: UUID) -> StoredMessage | None:
    """One message, if it is the user's."""
    query = (
        select(*_MESSAGE_COLUMNS)
        .join(ChatSession, ChatSession.id == ChatMessage.session_row_id)
        .where(ChatMessage.id == message_id, ChatSession.user_id == user_id)
    )
    row = (await connection.execute(query)).first()
    return None if row is None else _message(row)


async def delete_messages(connection: AsyncConnection, ids: Sequence[UUID]) -> None:
    """Delete messages. For ids that were read under the owner's predicate."""
    await connection.execute(delete(ChatMessage).where(ChatMessage.id.in_(ids)))


async def insert_messages(
    connection: AsyncConnection, session_row_id: UUID, records: Mapping[int, Mapping[str, Any]]
) -> None:
    """Write messages (type, content, trace) by their ``seq``."""
    rows = [{**record, "seq": seq, "session_row_id": session_row_id} for seq, record in records.items()]
    await connection.execute(insert(ChatMessage), rows)


async def set_traces(connection: AsyncConnection, traces: Mapping[UUID, dict[str, Any]]) -> None:
    """Replace the traces of messages."""
    rows = [{"message": message_id, "trace": trace} for message_id, trace in traces.items()]
    statement = update(ChatMessage.__table__).where(ChatMessage.id == bindparam("message"))  # pyright: ignore[reportArgumentType]
    await connection.execute(statement.values(rag_trace=bindparam("trace")), rows)


_SESSION_COLUMNS = (
    ChatSession.id,
    ChatSession.session_id,
    ChatSession.title,
    ChatSession.updated_at,
    ChatSession.message_count,
)


def _session_info(row: AnyRow) -> SessionInfo:
    return SessionInfo(
        session_id=row.session_id, title=row.title, updated_at=row.updated_at, message_count=row.message_count
    )


async def sessions(
    connection: AsyncConnection, user_id: UUID, limit: int | None, below: SessionKey | None
) -> tuple[list[SessionInfo], SessionKey | None]:
    """A page of the user's sessions, newest first, and the key of its last one when there are more."""
    query = select(*_SESSION_COLUMNS).where(ChatSession.user_id == user_id)
    if below is not None:
        key: ColumnElement[bool] = tuple_(ChatSession.updated_at, ChatSession.id) < (below.updated_at, below.id)
        query = query.where(key)
    query = query.order_by(ChatSession.updated_at.desc(), ChatSession.id.desc())
    rows = (await connection.execute(query.limit(None if limit is None else limit + 1))).all()
    if limit is None or len(rows) <= limit:
        return [_session_info(row) for row in rows], None
    last = rows[limit - 1]
    return [_session_info(row) for row in rows[:limit]], SessionKey(last.updated_at, last.id)


async def set_title(connection: AsyncConnection, user_id: UUID, session_id: str, title: str) -> SessionInfo | None:
    """A title chosen by the user; ``None`` when the session is not the user's."""
    statement = (
        update(ChatSession)
        .where(ChatSession.user_id == user_id, ChatSession.session_id == session_id)
        .values(title=title, title_source="user", version=_next_version)
        .returning(*_SESSION_COLUMNS)
    )
    row = (await connection.execute(statement)).first()
    return None if row is None else _session_info(row)


async def delete_sessions(
    connection: AsyncConnection, user_id: UUID, session_id: str | None, limit: int
) -> list[tuple[str, int, UUID]]:
    """Delete one session of the user, or ``limit`` of them, with all that hangs on them.

    Gives of each its id, a version above any it ever had, and the id of its row.
    """
    chosen = select(ChatSession.id).where(ChatSession.user_id == user_id).limit(limit)
    if session_id is not None:
        chosen = chosen.where(ChatSession.session_id == session_id)
    statement = delete(ChatSession).where(ChatSession.id.in_(chosen))
    gone = await connection.execute(statement.returning(ChatSession.session_id, _next_version, ChatSession.id))
    return [(name, version, row) for name, version, row in gone]


async def add_purge(connection: AsyncConnection, kind: str, target: str) -> UUID:
    """Note what is still to be removed outside PostgreSQL after this transaction."""
    statement = insert(PurgeOutbox).values(kind=kind, target=target).returning(PurgeOutbox.id)
    return (await connection.execute(statement)).scalar_one()


async def purges(connection: AsyncConnection, kind: str, limit: int) -> list[tuple[UUID, str]]:
    """What is still to be removed, oldest first."""
    query = select(PurgeOutbox.id, PurgeOutbox.target).where(PurgeOutbox.kind == kind).order_by(PurgeOutbox.id)
    return [(row.id, row.target) for row in await connection.execute(query.limit(limit))]


async def drop_purge(connection: AsyncConnection, outbox_id: UUID) -> None:
    """Note that it was removed."""
    await connection.execute(delete(PurgeOutbox).where(PurgeOutbox.id == outbox_id))
