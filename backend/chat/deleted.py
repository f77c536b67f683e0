"""What is left in a message of a document that is no longer there: that it was cited, and nothing of its content."""

from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast
from uuid import UUID

from backend.schemas.chat import EVIDENCE_FIELDS, Citation, MessageInfo

ExistingDocuments = Callable[[UUID, Collection[UUID]], Awaitable[set[UUID]]]
"""Which of these documents there still are for the user."""


async def without_deleted(
    messages: Sequence[MessageInfo], user_id: UUID, existing: ExistingDocuments
) -> list[MessageInfo]:
    """``messages``; of documents that are gone no quotation and no passage is left, and their citations say so."""
    named = {name for message in messages for name in _documents(message)}
    ids = {found for name in named if (found := _uuid(name)) is not None}
    if not ids:
        return list(messages)
    there = {str(document_id) for document_id in await existing(user_id, ids)}
    gone = named - there
    return [_without(message, gone) if gone else message for message in messages]


def _documents(message: MessageInfo) -> Iterator[str]:
    yield from (item.document_id for item in message.citations if item.document_id is not None)
    for chunk in _chunks(message.rag_trace):
        if isinstance(name := chunk.get("document_id"), str):
            yield name


def _chunks(trace: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Every piece of evidence in a trace and in those of its parts."""
    for part in (trace, *cast("list[dict[str, Any]]", (trace or {}).get("sub_traces", []))):
        for field in EVIDENCE_FIELDS & (part or {}).keys():
            yield from cast("dict[str, list[dict[str, Any]]]", part)[field]


def _without(message: MessageInfo, gone: AbstractSet[str]) -> MessageInfo:
    if gone.isdisjoint(_documents(message)):
        return message
    kept = message.model_copy(deep=True)
    for chunk in _chunks(kept.rag_trace):
        if chunk.get("document_id") in gone:
            chunk.pop("text", None)
            chunk.pop("heading", None)
    kept.citations = [_deleted(item) if item.document_id in gone else item for item in kept.citations]
    return kept


def _deleted(citation: Citation) -> Citation:
    return citation.model_copy(update={"quote": "", "heading": None, "deleted": True})


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
