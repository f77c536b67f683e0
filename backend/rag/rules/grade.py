"""What passages are worth for a question, by rules: whether they answer it, and whether they answer it in one way."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from backend.infra.analyze import STOP_WORDS, query_terms
from backend.rag.decisions import MAX_OPTIONS, DecisionInput, GradeDecision
from backend.rag.rules.evidence import (
    NUMBER,
    Question,
    Sentence,
    Source,
    Weighed,
    could_answer,
    in_order,
    likelihood,
    weigh,
)
from backend.rag.rules.question import answer_kind, question_language

LEAST, SURE = 0.5, 0.75
"""Likelihoods: below the first the passages do not answer; from the second on no other wording is tried."""
RELATED = 0.15
"""Below this the passages are about something else."""

_RIVAL_SHARE, _RIVAL_DISTANCE = 0.75, 0.05
"""A sentence is a rival of the best one when it holds this share of the question's weight, and this close to it."""
_SAME = 0.6
"""Two sentences whose words overlap more than this say the same."""


@dataclass(frozen=True, slots=True)
class _Rival:
    """A sentence that answers as well as any, and where it stands."""

    sentence: Sentence
    source: Source


def grade_rule(given: DecisionInput) -> GradeDecision:
    """The grade of ``given.candidates`` for ``given.question``."""
    wanted, weighed = weigh(given.question, [Source.of(chunk) for chunk in given.candidates])
    if not weighed or not wanted.weights:
        return GradeDecision(
            relevance="none", answerability="none", route="no_knowledge", confidence=0.9, reason="nothing to go by"
        )
    best = in_order(weighed)[0]
    likely = likelihood(best, weighed, chinese=question_language(given.question) == "zh")
    reason = f"the best passage holds {best.coverage:.0%} of the question, likelihood {likely:.2f}"
    if likely < LEAST:
        related = likely >= RELATED
        return GradeDecision(
            relevance="weak" if related else "none",
            answerability="none",
            route="rewrite" if related else "no_knowledge",
            confidence=round(1 - likely, 2),
            reason=reason,
        )
    asked = _ambiguity(given.question, wanted, best, weighed, reason)
    if asked is not None:
        return asked
    sure = likely >= SURE
    return GradeDecision(
        relevance="strong",
        answerability="sufficient" if sure else "partial",
        route="answer" if sure else "rewrite",
        confidence=round(likely, 2),
        reason=reason,
    )


def _ambiguity(
    question: str, wanted: Question, best: Weighed, weighed: Sequence[Weighed], reason: str
) -> GradeDecision | None:
    """A question back when several sentences answer equally well and differently."""
    rivals = _rivals(question, wanted, weighed)
    by_document = {rival.source.document: rival for rival in reversed(rivals)}
    if len(by_document) > 1 and best.source.document in by_document:
        options = _document_options([by_document[name] for name in dict.fromkeys(r.source.document for r in rivals)])
        return GradeDecision(
            relevance="strong",
            answerability="partial",
            ambiguity="multiple_candidates",
            route="scope_select",
            confidence=0.6,
            options=options,
            reason=f"{len(by_document)} documents answer differently; {reason}",
        )
    labels = _labels(rivals)
    if len(labels) > 1:
        return GradeDecision(
            relevance="strong",
            answerability="partial",
            ambiguity="missing_slot",
            route="clarify",
            confidence=0.6,
            missing_slots=[_slot(labels, question)],
            options=labels,
            reason=f"the answer depends on what is meant; {reason}",
        )
    return None


def _rivals(question: str, wanted: Question, weighed: Sequence[Weighed]) -> list[_Rival]:
    """The sentences that hold the question best and could answer it, each of which says something else."""
    kind = answer_kind(question)
    found = [
        (wanted.share(sentence.near), _Rival(sentence, one.source))
        for one in weighed
        for sentence in one.sentences
        if sentence.held and could_answer(kind, sentence, wanted)
    ]
    most = max((share for share, _ in found), default=0.0)
    rivals: list[_Rival] = []
    for share, rival in sorted(found, key=lambda item: -item[0]):
        if share < max(_RIVAL_SHARE, most - _RIVAL_DISTANCE):
            break
        if all(_differ(rival.sentence, other.sentence) for other in rivals):
            rivals.append(rival)
    return rivals


def _differ(one: Sentence, other: Sentence) -> bool:
    """Whether two sentences say different things: other numbers, or mostly other words."""
    numbers = [{word for word in sentence.words if NUMBER.search(word)} for sentence in (one, other)]
    if numbers[0] != numbers[1]:
        return True
    words = [set(sentence.words) - STOP_WORDS for sentence in (one, other)]
    return len(words[0] & words[1]) < _SAME * len(words[0] | words[1])


def _document_options(rivals: Sequence[_Rival]) -> list[str]:
    """Each document by its file name."""
    return list(dict.fromkeys(rival.source.filename for rival in rivals))[:MAX_OPTIONS]


def _labels(rivals: Sequence[_Rival]) -> list[str]:
    """What tells the rivals apart, in the documents' own words: their headings, the first cells of table rows, or the
    words in which their sentences differ before they differ in the answer."""
    if len(rivals) < 2:
        return []
    for labels in (
        [_first_cell(rival.sentence) for rival in rivals],
        [rival.sentence.heading for rival in rivals],
        _differing(rivals),
    ):
        if all(labels) and len(set(labels)) == len(labels):
            return labels[:MAX_OPTIONS]
    return []


def _first_cell(sentence: Sentence) -> str:
    return sentence.text.strip("| ").split("|")[0].strip() if sentence.text.startswith("|") else ""


_NAME = re.compile(r"[A-Z][\w-]*\d[\w-]*|\b(?:19|20)\d\d\b|[A-Z]{2,}\b|\b[A-Z][a-z]+\b")


def _differing(rivals: Sequence[_Rival]) -> list[str]:
    """The first name (a model, a year, a place) of each sentence that the others do not have."""
    found: list[str] = []
    for rival in rivals:
        others = {word for other in rivals if other is not rival for word in other.sentence.words}
        names = [name for name in _NAME.findall(rival.sentence.text) if not others.intersection(query_terms(name))]
        found.append(names[0] if names and query_terms(names[0]) else "")
    return found


def _slot(labels: Sequence[str], question: str) -> str:
    chinese = question_language(question) == "zh"
    if all(re.fullmatch(r"(?:19|20)\d\d年?", label) for label in labels):
        return "年份" if chinese else "year"
    return "具体对象" if chinese else "which one"
