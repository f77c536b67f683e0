"""Plan: whether a question is one fact, or several that are looked up apart."""

from dataclasses import dataclass, field

from langchain_core.messages.ai import UsageMetadata

from backend.rag.decisions import MAX_SUB_QUESTIONS, Complexity, DecisionInput, PlanDecision
from backend.rag.prompts import PLAN_RULES, one_line, plan_data
from backend.rag.rules import is_plain_question
from backend.rag.structured import NO_RULE, DecisionModel

MAX_PART_CHARS = 300
PLAIN = "a plain question, by rule"


@dataclass(frozen=True, slots=True)
class Plan:
    """``sub_questions`` (2 to 4) when ``complex``. ``failure``: why the model decided nothing."""

    complexity: Complexity
    reason: str
    sub_questions: list[str] = field(default_factory=list[str])
    failure: str | None = None
    usage: UsageMetadata | None = None


async def make_plan(model: DecisionModel, given: DecisionInput) -> Plan:
    """The plan for ``given.question``; simple when the model fails or names less than two parts."""
    if is_plain_question(given.question):
        return Plan("simple", PLAIN)
    decided = await model.decide(PlanDecision, PLAN_RULES, given, plan_data(given.question))
    decision = decided.value
    if decision is None:
        failure = None if decided.failure == NO_RULE else decided.failure
        return Plan("simple", f"not planned: {decided.failure}", failure=failure, usage=decided.usage)
    reason = one_line(decision.reason)
    parts = _parts(decision.sub_questions) if decision.complexity == "complex" else []
    if len(parts) < 2:
        reason = reason if decision.complexity == "simple" else f"less than two parts: {reason}"
        return Plan("simple", reason, usage=decided.usage)
    return Plan("complex", reason, parts, usage=decided.usage)


def _parts(questions: list[str]) -> list[str]:
    parts = dict.fromkeys(one_line(question, MAX_PART_CHARS) for question in questions)
    return [part for part in parts if part][:MAX_SUB_QUESTIONS]
