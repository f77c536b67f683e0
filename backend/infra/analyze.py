"""The one word analysis, for every index adapter and every rule that compares words.

Documents and queries pass through here before they reach an index, which then only splits at spaces; so all
adapters find the same things, no dictionary is needed, and Chinese, Japanese and Korean work like English.
"""

import re
import threading
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from snowballstemmer import EnglishStemmer

MAX_TERM_CHARS = 64
"""A longer word is cut, a longer identifier counts by its parts only."""

_HAN = "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_KANA = "\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
_HANGUL = "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff"
_NO_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
"""Thai, Lao, Burmese, Khmer: written without spaces, so bigrams as well."""
_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"

_RUNS = re.compile(
    rf"(?P<cjk>[{_HAN}{_KANA}]+)|(?P<hangul>[{_HANGUL}]+)|(?P<dense>[{_NO_SPACES}]+)"
    r"|(?P<compound>[a-z0-9]++(?:(?:[.:/@+-]|_++)[a-z0-9]++)++)"
    rf"|(?P<word>(?:[^\W_{_HAN}{_KANA}{_HANGUL}{_NO_SPACES}]|[{_MARKS}])+"
    rf"(?:'(?:[^\W_{_HAN}{_KANA}{_HANGUL}{_NO_SPACES}]|[{_MARKS}])+)*)"
)
_HAN_CHAR = re.compile(f"[{_HAN}]")
_PARTS = re.compile(r"[a-z0-9]+")
_CONTRACTIONS = frozenset({"s", "t", "d", "m", "ll", "re", "ve"})

_STOP_WORDS = """
a about above after again against all also am an and any are aren as at be because been before being below
between both but by can cannot could couldn did didn do does doesn doing don down during each few for from further
had hadn has hasn have haven having he her here hers herself him himself his how i if in into is isn it its itself
just let me more most mustn my myself no nor not now of off on once only or other ought our ours ourselves out over
own please same shan she should shouldn so some such tell than that the their theirs them themselves then there
these they this those through to too under until up very was wasn we were weren what when where which while who
whom why will with won would wouldn you your yours yourself yourselves
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""English words that say nothing about a document; dropped from queries, kept in the index."""

_PARTICLES = frozenset("的了吗呢吧啊呀嘛哦么嗎麼")
"""A Chinese query term that is made of these alone is dropped too."""


class _Local(threading.local):
    """A stemmer keeps its word in itself, so each thread has its own."""

    def __init__(self) -> None:
        self.stemmer = EnglishStemmer()


_local = _Local()


@lru_cache(maxsize=65_536)
def _stem(word: str) -> str:
    stem: str = _local.stemmer.stemWord(word)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # untyped
    return str(stem)[:MAX_TERM_CHARS]  # pyright: ignore[reportUnknownArgumentType]


_ACCENTED = frozenset(map(chr, (*range(0xC0, 0x250), *range(0x1E00, 0x1F00))))


def _normalize(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'")
    if text.isascii():
        return text
    return "".join(_fold(char) if char in _ACCENTED else char for char in text)


@lru_cache(maxsize=1024)
def _fold(char: str) -> str:
    base = unicodedata.normalize("NFD", char)[0]
    return base if base.isascii() else char


def _bigrams(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for first, second in pairwise(run):
        yield first + second


def _cjk(run: str) -> Iterator[str]:
    """Bigrams over Han and kana together (words mix them) and every Han character alone."""
    if len(run) > 1:
        yield from _HAN_CHAR.findall(run)
    yield from _bigrams(run)


def _compound(run: str) -> Iterator[str]:
    """An identifier (anything joined that holds a digit, ``_`` or ``@``) in whole and in parts; else the parts."""
    if len(run) <= MAX_TERM_CHARS and re.search(r"[0-9_@]", run):
        yield run
    for part in _PARTS.findall(run):
        yield _stem(part) if part.isalpha() else part[:MAX_TERM_CHARS]


def _word(run: str) -> Iterator[str]:
    for position, part in enumerate(run.split("'")):
        if position == 0 or part not in _CONTRACTIONS:
            yield part


def _raw_terms(text: str) -> Iterator[tuple[str, str]]:
    """Pairs of the term and the word it was before stemming."""
    for match in _RUNS.finditer(_normalize(text)):
        run = match.group()
        match match.lastgroup:
            case "cjk":
                yield from ((term, term) for term in _cjk(run))
            case "hangul" | "dense":
                yield from ((term, term) for term in _bigrams(run))
            case "compound":
                yield from ((term, term) for term in _compound(run))
            case _:
                for word in _word(run):
                    yield (_stem(word) if word.isalpha() else word[:MAX_TERM_CHARS]), word


def terms(text: str) -> list[str]:
    """The terms of ``text`` in order, repeated as often as they occur; no term holds a space."""
    return [term for term, _ in _raw_terms(text)]


def query_terms(text: str) -> list[str]:
    """The terms of a question without English stop words and Chinese particles; empty when nothing is left."""
    return [term for term, word in _raw_terms(text) if word not in STOP_WORDS and not _PARTICLES.issuperset(word)]


def analyze(text: str) -> str:
    """What an index stores for ``text``: its terms, joined by spaces."""
    return " ".join(terms(text))


def analyze_query(text: str) -> str:
    """What an index is asked for: the query's terms, each once, joined by spaces. Some would weigh what is repeated."""
    return " ".join(dict.fromkeys(query_terms(text)))


_ABBREVIATIONS = frozenset(
    {"mr", "mrs", "ms", "dr", "prof", "sr", "jr", "st", "al", "cf", "vs", "approx", "dept", "est"}
    | {"inc", "ltd", "co", "corp", "e.g", "i.e", "u.s", "u.k"}
)
_NUMBER_NAMES = frozenset(
    {"no", "nos", "vol", "fig", "figs", "eq", "eqs", "sec", "secs", "ch", "p", "pp", "art", "ed"}
    | {"jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec"}
)
"""Abbreviations only before a number; elsewhere "no." ends a sentence."""
_BREAK = re.compile(
    r"(?P<cjk>[。！？｡]++[」』”’）》】\"')]*+)"
    r"|(?P<latin>(?<![.!?…])[.!?…]++[\"'”’)\]]*+)(?=\s)"
    r"|(?P<blank>\n[ \t\r\f\v]*+\n\s*+)"
    r"|(?P<line>\n(?=[ \t]*+(?:[-*•·#|>]|\d{1,3}[.)]\s)))"
)
_WORD_BEFORE = re.compile(r"[\w.]+$")
_BLOCK_LINE = re.compile(r"[ \t]*[#|]")


def _is_end(text: str, start: int, match: re.Match[str]) -> bool:
    """Whether a ``.``, ``!`` or ``?`` ends a sentence: not after an abbreviation or initial, not before lower case."""
    if match.lastgroup != "latin":
        return True
    after = text[match.end() : match.end() + 40].lstrip()
    if after[:1].islower():
        return False
    if not match.group().startswith(".") or match.group().startswith(".."):
        return True
    word = _WORD_BEFORE.search(text, max(start, match.start() - 40), match.start())
    if word is None:
        return True
    before = word.group().lower()
    numbered = before.isdigit() and not text[start : word.start()].strip()  # "3. Install it": the number of a list item
    named = before in _ABBREVIATIONS or (before in _NUMBER_NAMES and after[:1].isdigit())
    return not (named or numbered or (len(before) == 1 and before.isalpha()))


def _cuts(text: str) -> Iterator[int]:
    start = 0
    for match in _BREAK.finditer(text):
        if _is_end(text, start, match):
            start = match.end()
            yield start


def _block_lines(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """A heading or table line stands alone; other lines of the piece stay together."""
    if not _BLOCK_LINE.match(text, start, end):
        yield start, end
        return
    newline = text.find("\n", start, end)
    yield from [(start, end)] if newline < 0 else [(start, newline + 1), (newline + 1, end)]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of every sentence in ``text``, without white space around it; they cover all that is not white."""
    spans: list[tuple[int, int]] = []
    start = 0
    for cut in (*_cuts(text), len(text)):
        for left, right in _block_lines(text, start, cut):
            piece = text[left:right]
            if stripped := piece.strip():
                first = left + len(piece) - len(piece.lstrip())
                spans.append((first, first + len(stripped)))
        start = cut
    return spans


def sentences(text: str) -> list[str]:
    """The sentences of ``text`` in order, each exactly as it stands there; headings, list items, table rows count."""
    return [text[start:end] for start, end in sentence_spans(text)]
