"""What passages are worth for a question, by rules: whether they answer it, and whether they answer it in one way."""

from collections.abc import Sequence

from backend.catalogue import say
from backend.rag.decisions import MAX_OPTIONS, DecisionInput, GradeDecision
from backend.rag.rules.evidence import Question, Weighed, in_order, likelihood, may_quote, weigh
from backend.rag.rules.question import answer_kind, question_language
from backend.rag.rules.reading import Source
from backend.rag.rules.rivals import labels, rivals, slot_of

LEAST, SURE = 0.5, 0.75
"""Likelihoods: below the first the passages do not answer; from the second on no other wording is tried."""
RELATED = 0.15
"""Below this the passages are about something else."""
_ASKING = 0.6
"""The confidence of a question back: that something answers is sure, what is meant is not."""


def grade_rule(given: DecisionInput) -> GradeDecision:
    """The grade of ``given.candidates`` for ``given.question``."""
    wanted, weighed = weigh(given.question, [Source.of(chunk) for chunk in given.candidates])
    if not weighed:
        return GradeDecision(
            relevance="none", answerability="none", route="no_knowledge", confidence=0.9, reason="nothing to go by"
        )
    best = in_order(weighed)[0]
    likely = likelihood(best, weighed, chinese=question_language(given.question) == "zh")
    reason = f"the best passage holds {best.coverage:.0%} of the question, likelihood {likely:.2f}"
    quotable = any(may_quote(sentence, wanted) for one in weighed for sentence in one.sentences)
    if likely < LEAST or not quotable:
        related = likely >= RELATED
        return GradeDecision(
            relevance="weak" if related else "none",
            answerability="none",
            route="rewrite" if related else "no_knowledge",
            confidence=round(1 - min(likely, LEAST), 2),
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
    """A question back when several sentences answer equally well and differently: in several documents, or in one for
    different things."""
    found = rivals(question, wanted, weighed)
    documents = {rival.document: rival.of.source.filename for rival in found}
    names = list(dict.fromkeys(documents.values()))
    if len(names) > 1 and best.source.document in documents:
        return GradeDecision(
            relevance="strong",
            answerability="partial",
            ambiguity="multiple_candidates",
            route="scope_select",
            confidence=_ASKING,
            options=names[:MAX_OPTIONS],
            reason=f"{len(names)} documents answer differently; {reason}",
        )
    ways = labels([rival for rival in found if rival.document == best.source.document])
    if not ways:
        return None
    slot = say(slot_of(ways, answer_kind(question)), question_language(question))
    return GradeDecision(
        relevance="strong",
        answerability="partial",
        ambiguity="missing_slot",
        route="clarify",
        confidence=_ASKING,
        missing_slots=[slot],
        options=ways[:MAX_OPTIONS],
        reason=f"{len(ways)} answers for different things; {reason}",
    )
