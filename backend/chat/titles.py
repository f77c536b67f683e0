"""Short lines out of long texts: the title of a session by rule is its first message, cut."""

import regex

MAX_GRAPHEMES = 80
_SPACE = regex.compile(r"[\s\p{Cc}\p{Cf}--[\u200d]]+", regex.V1)
_GRAPHEME = regex.compile(r"\X")


def one_line(text: str) -> str:
    """``text`` on one line: white space, control and format characters in a row are one space, none at the ends."""
    return _SPACE.sub(" ", text).strip()


def short_line(text: str, max_graphemes: int) -> str:
    """The first ``max_graphemes`` user-perceived characters of ``text`` on one line, ``…`` where it was cut."""
    line = one_line(text[: max_graphemes * 40])
    graphemes = _GRAPHEME.findall(line)
    if len(graphemes) <= max_graphemes:
        return line
    return "".join(graphemes[: max_graphemes - 1]).rstrip() + "…"


def rule_title(message: str) -> str:
    """:func:`short_line` of ``message``; ``…`` when there is nothing to read in it."""
    return short_line(message, MAX_GRAPHEMES) or "…"
