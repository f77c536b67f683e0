"""The title of a session by rule: the first message, cut to one short line."""

import regex

MAX_GRAPHEMES = 80
_SPACE = regex.compile(r"[\s\p{Cc}\p{Cf}--[\u200d]]+", regex.V1)
_GRAPHEME = regex.compile(r"\X")


def one_line(text: str) -> str:
    """``text`` on one line: white space, control and format characters in a row are one space, none at the ends."""
    return _SPACE.sub(" ", text).strip()


def rule_title(message: str) -> str:
    """The first ``MAX_GRAPHEMES`` user-perceived characters of ``message`` on one line, ``…`` where it was cut.

    Control and format characters count as spaces. A message of nothing else gives ``…``.
    """
    line = one_line(message[: MAX_GRAPHEMES * 40])
    graphemes = _GRAPHEME.findall(line)
    if not graphemes:
        return "…"
    if len(graphemes) <= MAX_GRAPHEMES:
        return line
    return "".join(graphemes[: MAX_GRAPHEMES - 1]).rstrip() + "…"
