"""Plan: whether a question is one fact, or several that are looked up apart."""

import re
from dataclasses import dataclass, field

from backend.rag.decisions import MAX_SUB_QUESTIONS, Complexity, DecisionInput, PlanDecision
from backend.rag.prompts import PLAN_RULES, one_line, plan_data
from backend.rag.structured import NO_RULE, DecisionModel

MAX_PART_CHARS = 300
MAX_PLAIN_CHARS = 160
PLAIN = "a plain question, by rule"

_SEVERAL = re.compile(
    r"\b(?:and|or|versus|vs|both|each|between|compare[sd]?|comparison|differ\w*|respectively|than)\b"
    r"|[;；]|[和与跟及]|或|还是|比|区别|差[别异]|不同|异同|分别|各自|以及|并且|同时|另外|还有",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """``sub_questions`` (2 to 4) when ``complex``. ``failure``: why the model decided nothing."""

    complexity: Complexity
    reason: str
    sub_questions: list[str] = field(default_factory=list[str])
    failure: str | None = None


def is_plain_question(question: str) -> bool:
    """Whether ``question`` is so short and simple that no model is asked: one sentence, nothing joined or compared."""
    marks = sum(question.count(mark) for mark in "?？。!！\n")
    return len(question) <= MAX_PLAIN_CHARS and marks <= 1 and not _SEVERAL.search(question)


async def make_plan(model: DecisionModel, given: DecisionInput) -> Plan:
    """The plan for ``given.question``; simple when the model fails or names less than two parts."""
    if is_plain_question(given.question):
        return Plan("simple", PLAIN)
    decided = await model.decide(PlanDecision, PLAN_RULES, given, plan_data(given.question))
    decision = decided.value
    if decision is None:
        failure = None if decided.failure == NO_RULE else decided.failure
        return Plan("simple", f"not planned: {decided.failure}", failure=failure)
    reason = one_line(decision.reason)
    parts = _parts(decision.sub_questions) if decision.complexity == "complex" else []
    if len(parts) < 2:
        return Plan("simple", reason if decision.complexity == "simple" else f"less than two parts: {reason}")
    return Plan("complex", reason, parts)


def _parts(questions: list[str]) -> list[str]:
    parts = dict.fromkeys(one_line(question, MAX_PART_CHARS) for question in questions)
    return [part for part in parts if part][:MAX_SUB_QUESTIONS]
