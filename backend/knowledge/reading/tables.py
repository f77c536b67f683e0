"""Rows of cells as a Markdown table, the form in which every reader gives tables on."""

import re
from collections.abc import Iterable, Sequence

_PADDING = re.compile(r" {2,}(?=\S|$)")
_RULE = re.compile(r"-{4,}")


def markdown_table(rows: Iterable[Sequence[str]]) -> str:
    """The first row becomes the header; rows without text are left out, short ones filled up."""
    cleaned = [[_cell(cell) for cell in row] for row in rows]
    kept = [row for row in cleaned if any(row)]
    if not kept:
        return ""
    width = max(len(row) for row in kept)
    lines = [_line(row + [""] * (width - len(row))) for row in kept]
    return "\n".join([lines[0], _line(["---"] * width), *lines[1:]])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def without_padding(markdown: str) -> str:
    """``markdown`` with the blanks gone that align the columns of its tables: one long cell makes every row long."""
    return "\n".join(
        _RULE.sub("---", _PADDING.sub(" ", line)) if line.startswith("|") else line for line in markdown.split("\n")
    )
