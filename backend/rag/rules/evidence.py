"""How much of a question the passages at hand hold: shares of its words, weighed by how rare they are among them."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from backend.infra.analyze import STOP_WORDS, sentences, terms
from backend.rag.retrieve import Candidate
from backend.rag.rules.question import AnswerKind, asked_terms
from backend.rag.rules.spelling import respelled

NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|sixty"
    r"|ninety|hundred|thousand|million|billion|half|once|twice|daily|weekly|monthly|yearly)\b|[零一二三四五六七八九十百千万亿两半]",
    re.IGNORECASE,
)
"""A number, in digits or in words."""


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
    """A sentence of a source as it stands there, below ``heading``; ``is_heading`` of a heading and of the first row
    of a table, which answer nothing.

    ``held`` are the question's terms in it, ``near`` those in it, in the sentence before it, in the headings and the
    table's first row above it and in the source's own; ``words`` are all of its terms.
    """

    text: str
    heading: str
    is_heading: bool
    held: frozenset[str]
    near: frozenset[str]
    words: Sequence[str]


@dataclass(frozen=True, slots=True)
class Weighed:
    """A source against the question, shares in [0, 1]: of the question's weight in the source (``coverage``) and in
    the neighbourhood of its best sentence (``close``), and of the question's terms that are missing (``lacking``)."""

    place: int
    source: Source
    sentences: list[Sentence]
    coverage: float
    close: float
    lacking: float


@dataclass(frozen=True, slots=True)
class Question:
    """The terms of a question that count, with their weights among the sources at hand."""

    weights: Mapping[str, float]

    def share(self, held: frozenset[str]) -> float:
        """The share of the weight that ``held`` has."""
        total = sum(self.weights.values())
        return sum(self.weights[term] for term in held) / total if total else 0.0


def weigh(question: str, sources: Sequence[Source]) -> tuple[Question, list[Weighed]]:
    """``sources`` in their order. A term that is everywhere weighs little, one that is nowhere most."""
    content = asked_terms(respelled(question, [source.text for source in sources]))
    read = [list(_read(source, content)) for source in sources]
    held = [frozenset[str]().union(*(sentence.near for sentence in found)) for found in read]
    wanted = Question({term: _weight(term, held) for term in content})
    weighed = [
        Weighed(
            place=place,
            source=source,
            sentences=found,
            coverage=wanted.share(has),
            close=max((wanted.share(sentence.near) for sentence in found), default=0.0),
            lacking=1 - len(has) / max(1, len(content)),
        )
        for place, (source, found, has) in enumerate(zip(sources, read, held, strict=True))
    ]
    return wanted, weighed


def could_answer(kind: AnswerKind, sentence: Sentence, wanted: Question) -> bool:
    """Whether ``sentence`` says anything that the question does not: of a number or time, another number."""
    if sentence.is_heading:
        return False
    new = [word for word in sentence.words if word not in wanted.weights and word not in STOP_WORDS]
    if kind in ("number", "time"):
        return any(NUMBER.search(word) for word in new)
    return bool(new)


def _weight(term: str, held: Sequence[frozenset[str]]) -> float:
    return math.log(1 + (len(held) + 1) / (1 + sum(1 for one in held if term in one)))


def _read(source: Source, content: set[str]) -> Iterator[Sentence]:
    context = content.intersection(terms(f"{source.filename} {source.heading}"))
    heading = source.heading.rpartition(" > ")[2]
    path: dict[int, frozenset[str]] = {}
    row = before = frozenset[str]()
    in_table = False
    for text in sentences(source.text):
        words = terms(text)
        held = frozenset(content.intersection(words))
        depth = len(text) - len(text.lstrip("#"))
        opens_table = text.startswith("|") and not in_table
        if depth:
            path = {level: terms_above for level, terms_above in path.items() if level < depth} | {depth: held}
            heading = text.strip("# ")
        in_table = text.startswith("|")
        row = row if in_table and not opens_table else held if opens_table else frozenset[str]()
        above = frozenset[str]().union(*path.values(), row, context)
        yield Sentence(text, heading, bool(depth) or opens_table, held, held | before | above, words)
        before = frozenset[str]() if in_table or depth else held


_COVERAGE, _CLOSE, _PLACE = 2.0, 1.7, 1.0


def in_order(weighed: Sequence[Weighed]) -> list[Weighed]:
    """The sources, the one that answers most likely first: by what they hold and by their place."""
    return sorted(weighed, key=lambda one: -(_COVERAGE * one.coverage + _CLOSE * one.close + _PLACE / (1 + one.place)))


_AHEAD_UNKNOWN, _AHEAD_MOST = 0.15, 0.5


def ahead(best: Weighed, weighed: Sequence[Weighed]) -> float:
    """How far ``best`` is from the two most similar others towards the question itself, 0 being as they are; a value
    that says nothing where there are no two others or no similarities (an index without its dense arm)."""
    others = sorted(
        (one.source.similarity for one in weighed if one is not best and one.source.similarity is not None),
        reverse=True,
    )
    if best.source.similarity is None or len(others) < 2:
        return _AHEAD_UNKNOWN
    level = (others[0] + others[1]) / 2
    return min((best.source.similarity - level) / max(1 - level, 1e-6), _AHEAD_MOST)


def likelihood(best: Weighed, weighed: Sequence[Weighed], *, chinese: bool) -> float:
    """How likely the passages answer the question, in [0, 1]; 0.5 is where it is better to say that they do not.

    A logistic score. Its constants come from a regression over 595 questions in English and 595 in Chinese on
    Wikipedia paragraphs, once with the paragraph that answers and once without it, in libraries of 1 to 240 paragraphs
    (docs/extractive.md); the figures reported there are of other paragraphs.
    """
    score = 2.5 * best.coverage + 2.6 * best.close - 4.2 * best.lacking + 9.0 * ahead(best, weighed)
    return 1 / (1 + math.exp(-(score + (1.3 if chinese else 0.0) - 1.2)))
