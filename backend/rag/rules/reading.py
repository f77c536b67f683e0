"""A passage as the rules read it: sentence by sentence, each with what stands above it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

from backend.infra.analyze import sentences, terms
from backend.rag.retrieve import Candidate
from backend.rag.rules.measures import MEASURE
from backend.rag.rules.question import numbered_names

_ITEM = re.compile(r"\||[-*•·]\s|\d{1,3}[.)]\s")


@dataclass(frozen=True, slots=True)
class Source:
    """A passage as the rules read it: its file name and headings count as held, they are never quoted."""

    text: str
    filename: str = ""
    heading: str = ""
    document: str = ""
    similarity: float | None = None

    @classmethod
    def of(cls, chunk: Candidate) -> Self:
        """A candidate."""
        return cls(chunk.text, chunk.filename, chunk.heading or "", str(chunk.document_id), chunk.similarity)

    @classmethod
    def read(cls, item: Mapping[str, Any]) -> Self:
        """An item of the knowledge tool's artifact."""
        filename, heading = str(item.get("filename") or ""), str(item.get("heading") or "")
        return cls(str(item["text"]), filename, heading, str(item.get("document_id") or filename))


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a source as it stands there, below ``heading``; ``depth`` is above 0 for a heading itself.

    ``held`` are the question's terms in it, ``above`` those in the headings and the table's first row above it and in
    the file name, ``about`` the numbered names that its text is about, ``section`` those in the nearest heading that is
    not the document's title, ``near`` those in it, above it, what it is about, and in the sentence before it; ``words``
    are all of its terms.
    """

    text: str
    heading: str
    depth: int
    opens_table: bool
    held: frozenset[str]
    above: frozenset[str]
    about: frozenset[str]
    section: frozenset[str]
    near: frozenset[str]
    words: Sequence[str]

    @property
    def says_something(self) -> bool:
        """Whether it could be quoted: not a heading, nor the first row or the rule of a table."""
        return self.depth == 0 and not self.opens_table and bool(self.words)

    @property
    def led_to(self) -> bool:
        """Whether words of the question lead to it: its own, its section's, or, of a row of a table or an item of a
        list, whatever stands above."""
        return bool(self.held or self.section or _ITEM.match(self.text))


@dataclass(frozen=True, slots=True)
class Reading:
    """A source against the terms of a question: its sentences, and those that its file name and title hold: they
    say what it is about and answer nothing (``given``)."""

    source: Source
    sentences: list[Sentence]
    given: frozenset[str]

    @property
    def held(self) -> frozenset[str]:
        """All that it holds."""
        return self.given.union(*(sentence.near for sentence in self.sentences))


def read(source: Source, content: set[str], measure: re.Pattern[str] | None = None) -> Reading:
    """``source`` with what it holds of the terms ``content``; ``measure`` finds what tells the measure among them."""
    titles = f"{source.filename} {source.heading.partition(' > ')[0]}"
    found = list(_sentences(source, content, measure))
    given = _held(content, terms(titles)).union(*(one.held for one in found if one.depth == 1))
    return Reading(source, found, frozenset(given))


def settled(content: set[str], sources: Sequence[Source]) -> set[str]:
    """``content`` with the numbered names that ``sources`` know, and without the number that stands in one of them by
    itself: any 5 says nothing of pump 5. Names that none knows may be written otherwise there, and are left out."""
    asked = {term for term in content if " " in term}
    if not asked:
        return content
    held = [names for source in sources for text in (source.text, _titles(source)) for _, _, names in _worded(text)]
    known = asked.intersection(set[str]().union(*held))
    numbers = {part for name in known for part in name.split() if part[0].isdigit()}
    return content - (asked - known) - numbers


def _titles(source: Source) -> str:
    return f"{source.filename} {source.heading}"


def _held(content: set[str], words: Sequence[str]) -> frozenset[str]:
    """The terms ``content`` that ``words`` hold."""
    return frozenset(content.intersection(words) | content.intersection(numbered_names(words)))


class _Subject:
    """What a text is about as it is read, of the numbered names of a question: ``It delivers 35 litres`` stands where
    pump 5 was named, until another pump is."""

    def __init__(self, content: set[str]) -> None:
        self._content = content
        self.names = frozenset(name for name in content if " " in name)
        """The names that are asked about."""
        self.is_other = False
        """Whether the sentence names others of their kind alone."""
        self._kinds = {_kind(name) for name in self.names}
        self._terms: frozenset[str] = frozenset()

    def after(self, names: set[str], *, new: bool) -> frozenset[str]:
        """The question's terms of the name that counts in a sentence with ``names``; ``new`` forgets the one before."""
        if new:
            self._terms = frozenset()
        alike = {name for name in names if _kind(name) in self._kinds}
        self.is_other = bool(alike) and not alike & self.names
        if alike:
            named = names & self.names
            self._terms = frozenset(self._content.intersection(named.union(*(name.split() for name in named))))
        return self._terms


def _kind(name: str) -> str:
    """What there are several of: the part of a numbered name that is no number."""
    return next((part for part in name.split() if not part[0].isdigit()), name)


@lru_cache(maxsize=256)
def _worded(text: str) -> list[tuple[str, list[str], set[str]]]:
    """The sentences of ``text``, each with its terms and the numbered names among them.

    Nothing of a question is in it: the parts of a question, its grade and its answer read the same passages.
    """
    worded = ((sentence, terms(sentence)) for sentence in sentences(text))
    return [(sentence, words, numbered_names(words)) for sentence, words in worded]


def _sentences(source: Source, content: set[str], measure: re.Pattern[str] | None) -> Iterator[Sentence]:
    context = _held(content, terms(_titles(source)))
    outside, _, heading = source.heading.rpartition(" > ")
    section = _held(content, terms(heading)) if outside else frozenset[str]()
    path: dict[int, frozenset[str]] = {}
    row = before = frozenset[str]()
    subject = _Subject(content)
    in_table = False
    for text, words, names in _worded(source.text):
        held = frozenset(content.intersection(words) | (content & names))
        if measure is not None and measure.search(text):
            held |= {MEASURE}
        depth = len(text) - len(text.lstrip("#"))
        if depth:
            path = {level: above for level, above in path.items() if level < depth} | {depth: held}
            heading, section = text.strip("# "), held if depth > 1 else frozenset[str]()
        opens_table = text.startswith("|") and not in_table
        in_table = text.startswith("|")
        row = held if opens_table else row if in_table else frozenset[str]()
        above = frozenset[str]().union(*path.values(), row, context)
        about = subject.after(names, new=in_table or depth > 0)
        near = held | (before - subject.names if subject.is_other else before) | above | about
        yield Sentence(text, heading, depth, opens_table, held, above, about, section, near, words)
        before = frozenset[str]() if in_table or depth else held
