"""From the numbers in an answer to the chunks they name."""

import re
from collections.abc import Iterable
from typing import Any

from backend.infra.analyze import sentences, terms
from backend.schemas.chat import Citation, RetrievedChunk

QUOTE_CHARS = 300
_NUMBER = re.compile(r"\[(\d{1,4})\]")


def without_numbers(text: str) -> str:
    """``text`` without citation numbers: an earlier answer's numbers mean nothing in a later prompt."""
    return _NUMBER.sub("", text)


def best_quote(chunk_text: str, answer: str) -> str:
    """The sentence of the chunk that shares most terms with ``answer``, at most ``QUOTE_CHARS`` characters."""
    wanted = set(terms(answer))
    candidates = [sentence.strip() for sentence in sentences(chunk_text)]
    candidates = [sentence for sentence in candidates if sentence] or [chunk_text.strip()]

    def overlap(sentence: str) -> float:
        found = set(terms(sentence))
        return len(found & wanted) / (len(found) + 8) if found else 0.0

    return max(candidates, key=overlap)[:QUOTE_CHARS]


def build_citations(numbers: Iterable[int], answer: str, rag_trace: dict[str, Any] | None) -> list[Citation]:
    """One citation for each of ``numbers`` that names a retrieved chunk, ascending; the quote supports ``answer``."""
    trace = rag_trace or {}
    chunks = [RetrievedChunk.model_validate(item) for item in trace.get("retrieved_chunks", [])]
    reranked = bool(trace.get("rerank_applied"))
    valid = sorted(number for number in set(numbers) if 1 <= number <= len(chunks))
    return [_citation(number, chunks[number - 1], answer, reranked) for number in valid]


def _citation(index: int, chunk: RetrievedChunk, answer: str, reranked: bool) -> Citation:
    return Citation(
        index=index,
        chunk_id=chunk.chunk_id,
        document_id=chunk.document_id,
        filename=chunk.filename,
        page_number=chunk.page_number,
        heading=chunk.heading,
        quote=best_quote(chunk.text or "", _sentence_citing(answer, index)),
        score=chunk.rerank_score if reranked else chunk.score,
    )


def _sentence_citing(answer: str, index: int) -> str:
    """The lines of the answer that carry ``[index]``; what the quote should support."""
    lines = [line for line in answer.splitlines() if f"[{index}]" in line]
    return "\n".join(lines) or answer
