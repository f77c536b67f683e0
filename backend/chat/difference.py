"""A stored history made equal to a given one, writing only what differs."""

from collections.abc import Sequence
from typing import Any, TypedDict
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from sqlalchemy.ext.asyncio import AsyncConnection

from backend.chat import repository
from backend.schemas.chat import normalize_rag_trace
from backend.text import clean_text

MESSAGE_CLASSES: dict[str, type[BaseMessage]] = {"human": HumanMessage, "ai": AIMessage, "system": SystemMessage}


class MessageRecord(TypedDict):
    """What is written of a message."""

    type: str
    content: str
    rag_trace: dict[str, Any] | None


async def write_difference(
    connection: AsyncConnection, session_row_id: UUID, wanted: Sequence[MessageRecord]
) -> tuple[int, bool]:
    """Make the stored messages equal ``wanted``. Gives the last ``seq``, and whether one that was stored is no more."""
    stored = await repository.messages(connection, session_row_id, limit=None)
    first = stored[0].seq if stored else 1
    gone = [UUID(item.info.id) for item in stored[len(wanted) :]]
    new: dict[int, MessageRecord] = {first + at: record for at, record in enumerate(wanted) if at >= len(stored)}
    traces: dict[UUID, dict[str, Any]] = {}
    for item, record in zip(stored, wanted, strict=False):
        if (item.info.type, item.info.content) != (record["type"], record["content"]):
            gone.append(UUID(item.info.id))
            new[item.seq] = record
        elif record["rag_trace"] is not None and record["rag_trace"] != item.info.rag_trace:
            traces[UUID(item.info.id)] = record["rag_trace"]
    if gone:
        await repository.delete_messages(connection, gone)
    if new:
        await repository.insert_messages(connection, session_row_id, new)
    if traces:
        await repository.set_traces(connection, traces)
    return first + len(wanted) - 1, bool(gone)


def record_of(message: BaseMessage, index: int, extra: Sequence[dict[str, Any] | None] | None) -> MessageRecord:
    """``message`` as it is stored, with the trace that ``extra`` has at ``index``.

    Raises ``ValueError`` for a message that is neither human, AI nor system.
    """
    data = (extra[index] if extra is not None and index < len(extra) else None) or {}
    kinds = [name for name, kind in MESSAGE_CLASSES.items() if isinstance(message, kind)]
    if not kinds:
        raise ValueError(f"a message of type {message.type} is not part of a history")
    return {
        "type": kinds[0],
        "content": clean_text(str(message.text)),
        "rag_trace": normalize_rag_trace(data.get("rag_trace")),
    }
