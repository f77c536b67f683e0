"""Sentences that answer a question equally well and differently: whether it has to be asked back which is meant."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import dropwhile

from backend.infra.analyze import STOP_WORDS, terms
from backend.rag.decisions import MAX_OPTIONS
from backend.rag.rules.evidence import NUMBER, Question, Weighed, could_answer
from backend.rag.rules.question import AnswerKind, answer_kind
from backend.rag.rules.reading import Sentence

_SHARE, _DISTANCE = 0.75, 0.05
"""A rival holds this share of what is known of the question at all, and is this close to the one that holds most."""
_FIGURE_SHARE = 0.9
"""The same for two figures in sentences that are built differently."""
_PARALLEL = 0.5
"""Sentences that have this share of their words in common, in order, are built alike."""
_SAME = 0.6
"""Two sentences whose words overlap more than this say the same, unless their numbers differ."""
_MOST_COMPARED = 30
"""A long table has hundreds of sentences that are alike; each comparison takes time."""
_FIGURES = ("number", "time")
_NAME = re.compile(r"(?:19|20)\d\d年?|[A-Za-z]+[-_ ]?\d[\w.-]*|[A-Z][\w-]+(?: [A-Z][\w-]+)*")


@dataclass(frozen=True, slots=True)
class Rival:
    """A sentence that answers as well as any, and the source it stands in."""

    sentence: Sentence
    of: Weighed

    @property
    def document(self) -> str:
        """The document that it stands in."""
        return self.of.source.document


def rivals(question: str, wanted: Question, weighed: Sequence[Weighed]) -> list[Rival]:
    """The sentences that hold ``question`` best, could answer it, and say different things in comparable words; the
    first is the best one. Fewer than two: there is one answer."""
    kind = answer_kind(question)
    known = frozenset[str]().union(*(sentence.near for one in weighed for sentence in one.sentences))
    found = [
        (wanted.share(sentence.near, known), Rival(sentence, one))
        for one in weighed
        for sentence in one.sentences
        if sentence.led_to and could_answer(kind, sentence, wanted)
    ]
    most = max((share for share, _ in found), default=0.0)
    chosen: list[Rival] = []
    for share, rival in sorted(found, key=lambda item: -item[0])[:_MOST_COMPARED]:
        if share < max(_SHARE, most - _DISTANCE) or len(chosen) == MAX_OPTIONS:
            break
        figures = kind in _FIGURES and share >= _FIGURE_SHARE
        if all(_compete(rival, other, figures=figures) for other in chosen):
            chosen.append(rival)
    return chosen


def _compete(one: Rival, other: Rival, *, figures: bool) -> bool:
    """Whether two sentences answer differently. Built differently, they do so with figures in two documents or under
    two headings only: of other sentences it cannot be told whether both answer."""
    if not _differ(one.sentence, other.sentence):
        return False
    apart = one.document != other.document or one.sentence.heading != other.sentence.heading
    return _alike(one.sentence, other.sentence) or (figures and apart)


def _alike(one: Sentence, other: Sentence) -> bool:
    rows = one.text.startswith("|") and other.text.startswith("|") and one.heading == other.heading
    return rows or SequenceMatcher(None, one.words, other.words, autojunk=False).ratio() >= _PARALLEL


def _differ(one: Sentence, other: Sentence) -> bool:
    numbers = [{word for word in sentence.words if NUMBER.search(word)} for sentence in (one, other)]
    if numbers[0] != numbers[1]:
        return True
    words = [set(sentence.words) - STOP_WORDS for sentence in (one, other)]
    return len(words[0] & words[1]) < _SAME * len(words[0] | words[1])


def labels(found: Sequence[Rival]) -> list[str]:
    """What tells the rivals apart, in the document's own words: the first cells of their rows, their headings, or the
    names, models and years in which their sentences differ. Empty when nothing does."""
    for ways in (
        [_first_cell(rival.sentence) for rival in found],
        [rival.sentence.heading for rival in found],
        _names([rival.sentence for rival in found]),
    ):
        if len(ways) > 1 and all(ways) and len(set(ways)) == len(ways):
            return ways
    return []


def _first_cell(sentence: Sentence) -> str:
    return sentence.text.strip("| ").split("|")[0].strip() if sentence.text.startswith("|") else ""


def _names(sentences: Sequence[Sentence]) -> list[str]:
    """Of each sentence the first name that no other one has; of two Chinese ones, where there are no capitals, what
    stands before the first words that they share."""
    found: list[str] = []
    for sentence in sentences:
        others = {word for other in sentences if other is not sentence for word in other.words}
        names = [_without_stop_words(name) for name in _NAME.findall(sentence.text)]
        own = [name for name in names if set(terms(name)) - others]
        found.append(own[0] if own else _beginning(sentence, sentences))
    return found


def _without_stop_words(name: str) -> str:
    """``In 2021`` and ``The A10`` are named 2021 and A10."""
    return " ".join(dropwhile(lambda word: word.lower() in STOP_WORDS, name.split()))


def _beginning(sentence: Sentence, sentences: Sequence[Sentence]) -> str:
    text = sentence.text
    for other in sentences:
        if other is not sentence:
            match = SequenceMatcher(None, sentence.text, other.text, autojunk=False).find_longest_match()
            text = min(text, sentence.text[: match.a], key=len)
    return text.strip(" ，,：:的") if 0 < len(text) <= _MAX_LABEL_CHARS else ""


_MAX_LABEL_CHARS = 30


def slot_of(found: Sequence[str], kind: AnswerKind) -> str:
    """What the labels are, as a key of the catalogue: ``slot_year`` or ``slot_which``."""
    years = all(re.fullmatch(r"(?:19|20)\d\d年?", label) for label in found)
    return "slot_year" if years and kind != "time" else "slot_which"
