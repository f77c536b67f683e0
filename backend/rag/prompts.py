"""What the model reads of the retrieval: numbered passages, or why there are none."""

import re
from collections.abc import Sequence

from backend.rag.retrieve import Candidate

NO_KNOWLEDGE = "NO_KNOWLEDGE: nothing in the documents matches this query."
NO_DOCUMENTS = "NO_KNOWLEDGE: there are no documents yet."

_HEADER_LOOKALIKE = re.compile(r"^(\W*?)([\[［【〔])(?=\W*\d)")
"""A bracketed number before the first word of a line; white space and invisible characters may stand before it."""
_CONTINUATION = "    "


def numbered_chunks(chunks: Sequence[Candidate]) -> str:
    """``[n] filename (Page p): text`` for each chunk, n from 1.

    Only a header starts at the left edge: further lines of a text are indented, and a bracketed number at the start
    of a line is escaped, so no text inside a document passes for a passage of its own.
    """
    return "\n\n".join(f"{_header(number, chunk)} {_body(chunk.text)}" for number, chunk in enumerate(chunks, start=1))


def _header(number: int, chunk: Candidate) -> str:
    name = " ".join(chunk.filename.split())
    page = "" if chunk.page_number is None else f" (Page {chunk.page_number})"
    return f"[{number}] {name}{page}:"


def _body(text: str) -> str:
    # splitlines knows every line end, U+2028 and form feed too
    lines = [_HEADER_LOOKALIKE.sub(r"\1\\\2", line) for line in text.splitlines()]
    return f"\n{_CONTINUATION}".join(lines)
