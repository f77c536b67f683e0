"""Misspelt words of a question, in the spelling of the passages at hand."""

import re
from collections.abc import Sequence
from difflib import get_close_matches

from backend.infra.analyze import STOP_WORDS, terms

_CLOSE = 0.8
_LEAST_CHARS = 5
"""A shorter word that is not there is another word, not a misspelt one."""
_WORD = re.compile(r"[^\W\d_]+")


def respelled(question: str, texts: Sequence[str]) -> str:
    """``question`` with each word that occurs in none of ``texts``, but for a letter or two, as it is spelt there.

    For words of letters with spaces between them. A name that is written in capitals stays as it is.
    """
    unknown = [word for word in _WORD.findall(question) if _may_be_misspelt(word)]
    if not unknown:
        return question
    known = {word for text in texts for word in _WORD.findall(text.lower()) if len(word) >= _LEAST_CHARS - 1}
    stems = {term for word in known for term in terms(word)}
    for word in dict.fromkeys(unknown):
        if stems.isdisjoint(terms(word)) and (match := _closest(word.lower(), known)):
            question = re.sub(rf"\b{re.escape(word)}\b", match, question)
    return question


def _may_be_misspelt(word: str) -> bool:
    lower = word.lower()
    return word.isascii() and len(word) >= _LEAST_CHARS and lower not in STOP_WORDS and word[1:] == lower[1:]


def _closest(word: str, known: set[str]) -> str | None:
    near = [other for other in known if other[0] == word[0] and abs(len(other) - len(word)) <= 2]
    return next(iter(get_close_matches(word, sorted(near), 1, _CLOSE)), None)
