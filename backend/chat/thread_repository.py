"""SQL of the uploads that a session row knows of; each function runs inside the caller's transaction.

The files themselves lie in the thread's directory. The row says which there are, so that a turn without files never
looks into a directory, and which came since the last message: the claim of the next turn makes them its attachments.
"""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from backend.chat.thread_record import readable_uploads
from backend.infra.database.tables import ChatSession
from backend.schemas.chat import UploadedFile

UPLOADED = "uploaded_files"
NEW = "new_uploads"


async def thread_row(connection: AsyncConnection, user_id: UUID, session_id: str) -> UUID | None:
    """The row id of the user's session, which names its thread; ``None`` when it was not used yet."""
    query = select(ChatSession.id).where(ChatSession.user_id == user_id, ChatSession.session_id == session_id)
    return (await connection.execute(query)).scalar()


async def record_uploads(
    connection: AsyncConnection, row_id: UUID, files: Sequence[UploadedFile], added: Collection[str]
) -> None:
    """Say which files the thread has now, and that those named ``added`` came just now.

    Takes the row's lock; who writes other things of the session holds the user's lock before it.
    """
    query = select(ChatSession.thread_state).where(ChatSession.id == row_id).with_for_update()
    state: dict[str, Any] = (await connection.execute(query)).scalar_one()
    before = {item.filename for item in readable_uploads(state.get(NEW))}
    fresh = [item.model_dump() for item in files if item.filename in before or item.filename in added]
    kept = {**state, UPLOADED: [item.model_dump() for item in files], NEW: fresh}
    await connection.execute(update(ChatSession).where(ChatSession.id == row_id).values(thread_state=kept))
