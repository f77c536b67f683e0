"""How much of a question the passages at hand hold: shares of its words, weighed by how rare they are among them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.infra.analyze import STOP_WORDS
from backend.rag.rules.measures import MEASURE, measure_words
from backend.rag.rules.question import AnswerKind, asked_terms
from backend.rag.rules.reading import Reading, Sentence, Source, read, settled
from backend.rag.rules.spelling import respelled

NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|sixty"
    r"|ninety|first|second|third|fourth|fifth|hundred|thousand|million|billion|half|once|twice|daily|weekly|monthly|yearly)\b|[零一二三四五六七八九十百千万亿两半]",
    re.IGNORECASE,
)
"""A number, in digits or in words."""


@dataclass(frozen=True, slots=True)
class Question:
    """The terms of a question that count, with their weights among the sources at hand."""

    weights: Mapping[str, float]

    def share(self, held: frozenset[str], among: frozenset[str] | None = None) -> float:
        """The share of the weight (of the terms ``among``) that ``held`` has."""
        counted = self.weights.keys() if among is None else among
        total = sum(self.weights[term] for term in counted)
        return sum(self.weights[term] for term in held & counted) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class Weighed:
    """A source against the question, shares in [0, 1]: of the question's weight in the source (``coverage``) and in
    the neighbourhood of its best sentence (``close``).

    ``asked`` are the terms that the file name and title do not hold already; the ``stated`` shares are those of their
    weight, and ``lacking`` is the share of them that is missing.
    """

    place: int
    source: Source
    sentences: list[Sentence]
    asked: frozenset[str]
    coverage: float
    close: float
    stated_coverage: float
    stated_close: float
    lacking: float


def weigh(question: str, sources: Sequence[Source]) -> tuple[Question, list[Weighed]]:
    """``sources`` in their order. A term that is everywhere weighs little, one that is nowhere most."""
    content = settled(asked_terms(respelled(question, [source.text for source in sources])), sources)
    measure = measure_words(question) if MEASURE in content else None
    readings = [read(source, content, measure) for source in sources]
    held = [reading.held for reading in readings]
    wanted = Question({term: _weight(term, held) for term in content})
    return wanted, [_weighed(place, reading, wanted) for place, reading in enumerate(readings)]


def _weighed(place: int, reading: Reading, wanted: Question) -> Weighed:
    held = reading.held
    asked = frozenset(wanted.weights) - reading.given or frozenset(wanted.weights)
    return Weighed(
        place=place,
        source=reading.source,
        sentences=reading.sentences,
        asked=asked,
        coverage=wanted.share(held),
        close=max((wanted.share(sentence.near) for sentence in reading.sentences), default=0.0),
        stated_coverage=wanted.share(held, asked),
        stated_close=max((wanted.share(sentence.near, asked) for sentence in reading.sentences), default=0.0),
        lacking=1 - len(held & asked) / max(1, len(asked)),
    )


def could_answer(kind: AnswerKind, sentence: Sentence, wanted: Question) -> bool:
    """Whether ``sentence`` says anything that the question does not: of a number or time, another number."""
    if not sentence.says_something:
        return False
    new = [word for word in sentence.words if word not in wanted.weights and word not in STOP_WORDS]
    if kind in ("number", "time"):
        return any(NUMBER.search(word) for word in new)
    return bool(new)


def _weight(term: str, held: Sequence[frozenset[str]]) -> float:
    return math.log(1 + (len(held) + 1) / (1 + sum(1 for one in held if term in one)))


_LEAST_SHARE = 0.12


def may_quote(sentence: Sentence, wanted: Question) -> bool:
    """Whether the question's words lead to ``sentence``: with a smaller share of them it answers something else."""
    return sentence.led_to and sentence.says_something and wanted.share(sentence.near) >= _LEAST_SHARE


_COVERAGE, _CLOSE, _PLACE = 2.0, 1.7, 1.0


def in_order(weighed: Sequence[Weighed]) -> list[Weighed]:
    """The sources, the one that answers most likely first: by what they hold and by their place."""
    return sorted(weighed, key=lambda one: -(_COVERAGE * one.coverage + _CLOSE * one.close + _PLACE / (1 + one.place)))


_AHEAD_UNKNOWN, _AHEAD_MOST = 0.15, 0.5


def ahead(best: Weighed, weighed: Sequence[Weighed]) -> float:
    """How far ``best`` is from the two most similar others towards the question itself, 0 being as they are or behind;
    a value that says nothing where there are no two others or no similarities (an index without its dense arm).

    A share of a distance, because the similarities of unrelated texts differ from one embedder to another."""
    others = sorted(
        (one.source.similarity for one in weighed if one is not best and one.source.similarity is not None),
        reverse=True,
    )
    if best.source.similarity is None or len(others) < 2:
        return _AHEAD_UNKNOWN
    level = (others[0] + others[1]) / 2
    return max(0.0, min((best.source.similarity - level) / max(1 - level, 1e-6), _AHEAD_MOST))


def likelihood(best: Weighed, weighed: Sequence[Weighed], *, chinese: bool) -> float:
    """How likely the passages answer the question, in [0, 1]; 0.5 is where it is better to say that they do not.

    A logistic score. Its constants come from a regression over the questions on every second of 480
    Wikipedia paragraphs in English and Chinese, with the one that answers and without it, in libraries of 1 to 240
    paragraphs; figures on the other paragraphs are in docs/extractive.md.
    """
    score = 1.5 * best.stated_coverage + 2.4 * best.stated_close - 5.4 * best.lacking + 8.4 * ahead(best, weighed)
    return 1 / (1 + math.exp(-(score + (1.3 if chinese else 0.0) - 0.2)))
