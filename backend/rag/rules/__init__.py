"""What the extractive model decides and answers: rules over words and the search's scores, no model behind them."""

from collections.abc import Callable
from typing import Any

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from backend.rag.decisions import DECISION_INPUT, DecisionInput, GradeDecision, PlanDecision, RewriteDecision
from backend.rag.rules.answer import answer_from_passages, answer_from_uploads
from backend.rag.rules.grade import grade_rule
from backend.rag.rules.plan import plan_rule
from backend.rag.rules.question import is_plain_question
from backend.rag.rules.rewrite import rewrite_rule

__all__ = [
    "SCHEMA_RULES",
    "answer_from_passages",
    "answer_from_uploads",
    "grade_rule",
    "is_plain_question",
    "plan_rule",
    "rewrite_rule",
]


def _on_messages(rule: Callable[[DecisionInput], BaseModel]) -> Callable[[list[BaseMessage]], BaseModel]:
    """``rule`` on what the last message of a decision step carries for it (``DECISION_INPUT``)."""

    def decide(messages: list[BaseMessage]) -> BaseModel:
        carried: dict[str, Any] = messages[-1].additional_kwargs  # pyright: ignore[reportUnknownMemberType]  # a bare dict there
        given = carried.get(DECISION_INPUT)
        if not isinstance(given, DecisionInput):
            raise NotImplementedError("a rule needs the decision's input")
        return rule(given)

    return decide


SCHEMA_RULES: dict[type[BaseModel], Callable[[list[BaseMessage]], BaseModel]] = {
    PlanDecision: _on_messages(plan_rule),
    GradeDecision: _on_messages(grade_rule),
    RewriteDecision: _on_messages(rewrite_rule),
}
"""The structured outputs of the extractive model, by schema."""
