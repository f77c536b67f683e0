"""What the trace and the tool's artifact say of the evidence."""

from collections.abc import Sequence
from typing import Any

from backend.rag.retrieve import Candidate


def evidence(chunk: Candidate, *, text: bool = True) -> dict[str, Any]:
    """``chunk`` as an item of the trace's evidence lists (``RetrievedChunk``), absent values left out."""
    fields = {
        "filename": chunk.filename,
        "page_number": chunk.page_number,
        "text": chunk.text if text else None,
        "score": chunk.score,
        "rrf_rank": chunk.rank,
        "rerank_score": chunk.rerank_score,
        "chunk_id": str(chunk.chunk_id),
        "document_id": str(chunk.document_id),
        "document_version": chunk.document_version,
        "heading": chunk.heading,
    }
    return {key: value for key, value in fields.items() if value is not None}


def evidence_list(chunks: Sequence[Candidate], *, text: bool = True) -> list[dict[str, Any]]:
    """``chunks`` as an evidence list, in their order."""
    return [evidence(chunk, text=text) for chunk in chunks]


def artifact(chunks: Sequence[Candidate]) -> list[dict[str, Any]]:
    """``chunks`` as the knowledge tool hands them on: numbered from 1, and with the sub-questions that found them."""
    return [
        {"index": index, **evidence(chunk)}
        | ({"for_questions": list(chunk.for_questions)} if chunk.for_questions else {})
        for index, chunk in enumerate(chunks, start=1)
    ]
