"""SQL of the running note of a session; each function runs inside the caller's transaction."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ValidationError
from sqlalchemy import cast, func, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from backend.chat.records import RunRef
from backend.infra.database.tables import ChatMessage, ChatSession

NOTE = "note"
"""Where the metadata of a session hold its note."""


class Note(BaseModel):
    """What was noted of the messages up to ``seq`` ``through``."""

    text: str = ""
    through: int = 0


@dataclass(frozen=True, slots=True)
class NotedMessage:
    """A message as the note sees it."""

    seq: int
    type: str
    content: str
    status: str


@dataclass(frozen=True, slots=True)
class NotedSession:
    """A session at ``version``: its note, the last messages, and the oldest of those before them that it misses."""

    version: int
    note: Note
    last: list[NotedMessage]
    older: list[NotedMessage]


def note_of(meta: dict[str, Any]) -> Note:
    """The note in the metadata of a session; an empty one when there is none that can be read."""
    try:
        return Note.model_validate(meta.get(NOTE) or {})
    except ValidationError:
        return Note()


async def read_session(
    connection: AsyncConnection, ref: RunRef, *, last: int, older: int, max_chars: int
) -> NotedSession | None:
    """The session of a run, with its ``last`` messages and at most ``older`` ones before them, each of those cut to
    ``max_chars``. ``None`` when it is gone."""
    query = select(ChatSession.version, ChatSession.last_seq, ChatSession.meta)
    found = (
        await connection.execute(query.where(ChatSession.id == ref.session_row_id, ChatSession.user_id == ref.user_id))
    ).first()
    if found is None:
        return None
    note, border = note_of(found.metadata), found.last_seq - last
    return NotedSession(
        found.version,
        note,
        last=await _messages(connection, ref.session_row_id, above=border, limit=last, max_chars=None),
        older=await _messages(
            connection, ref.session_row_id, above=note.through, below=border + 1, limit=older, max_chars=max_chars
        ),
    )


async def write_note(connection: AsyncConnection, row_id: UUID, version: int, note: Note) -> bool:
    """Keep the note if the session is still at ``version``. It is no change that a reader of messages could see."""
    kept = cast({NOTE: note.model_dump()}, JSONB)
    statement = update(ChatSession).where(ChatSession.id == row_id, ChatSession.version == version)
    result = await connection.execute(statement.values(meta=ChatSession.meta.op("||")(kept)))
    return result.rowcount == 1


async def _messages(
    connection: AsyncConnection,
    row_id: UUID,
    *,
    above: int,
    below: int | None = None,
    limit: int,
    max_chars: int | None,
) -> list[NotedMessage]:
    content = ChatMessage.content if max_chars is None else func.left(ChatMessage.content, max_chars)
    query = select(ChatMessage.seq, ChatMessage.type, content.label("content"), ChatMessage.status)
    query = query.where(ChatMessage.session_row_id == row_id, ChatMessage.seq > above)
    if below is not None:
        query = query.where(ChatMessage.seq < below)
    rows = await connection.execute(query.order_by(ChatMessage.seq).limit(limit))
    return [NotedMessage(row.seq, row.type, row.content, row.status) for row in rows]
