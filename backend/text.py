"""Text hygiene at the edges: one function for every string that comes in from outside.

Postgres refuses NUL in text and jsonb, UTF-8 has no lone surrogates, and equal-looking strings must compare equal.
"""

import re
import unicodedata
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """``text`` without NUL, with lone surrogates as U+FFFD (a real pair becomes its character), in NFC."""
    if text.isascii():
        return text.replace("\x00", "") if "\x00" in text else text
    if _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return unicodedata.normalize("NFC", text.replace("\x00", ""))


def both_ends(text: str, limit: int) -> str:
    """``text``; of one with more than ``limit`` characters its beginning and its end, a space between them."""
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{text[:half]} {text[-half:]}"


def rough_tokens(text: str) -> int:
    """About how many tokens ``text`` is for a model, rather more: one a wide character, four others one."""
    wide = 0 if text.isascii() else sum(1 for char in text if char >= "\u2e80")
    return wide + (len(text) - wide) // 4


def is_blank(text: str) -> bool:
    """Whether nothing of ``text`` can be seen: white space, controls, and what has no width (U+200B, U+202E)."""
    return all(char.isspace() or unicodedata.category(char) in {"Cc", "Cf"} for char in text)


def clean_json(value: Any) -> Any:
    """``value`` with :func:`clean_text` applied to every string in it, keys too."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_json(key): clean_json(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value
