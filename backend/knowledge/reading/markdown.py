"""Markdown, the form in which every reader gives headings and tables on."""

import re
from collections.abc import Iterable, Sequence

_PADDING = re.compile(r" {2,}(?=\S|$)")
_RULE = re.compile(r"-{4,}")
_FENCE = re.compile(r"[ \t]*(```|~~~)")
_ESCAPE = re.compile(r"(?<!^)\\([!-/:-@\[-`{}~])|^\\([!-\"$-/:-@\[-_{}])")


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


def tidy(markdown: str) -> str:
    """What the library wrote without the blanks that align its tables and without its escapes.

    One long cell would make every row of a table long; ``ERR\\_5`` would not be found as ``ERR_5``. Escapes stay where
    the character would mean something: a bar, or the mark of a heading or code fence at the beginning of a line.
    """
    lines: list[str] = []
    fenced = False
    for line in markdown.split("\n"):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            line = _ESCAPE.sub(_unescaped, line)
            if line.startswith("|"):
                line = _RULE.sub("---", _PADDING.sub(" ", line))
        lines.append(line)
    return "\n".join(lines)


def _unescaped(match: re.Match[str]) -> str:
    return match[1] or match[2]
