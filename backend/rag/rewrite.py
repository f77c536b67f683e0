"""Rewrite: one second query for a question whose words found nothing good."""

from dataclasses import dataclass
from typing import Any

from langchain_core.messages.ai import UsageMetadata

from backend.rag.decisions import DecisionInput, RewriteDecision
from backend.rag.prompts import REWRITE_RULES, one_line, rewrite_data
from backend.rag.structured import DecisionModel

MAX_QUERY_CHARS = 1_000
UNCHANGED = "unchanged"
"""The failure of a rewrite that says what the question says."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """``query`` is what is searched with; ``None``, with the reason, when there is no better one."""

    query: str | None
    trace: dict[str, Any]
    failure: str | None = None
    usage: UsageMetadata | None = None


async def rewrite(model: DecisionModel, given: DecisionInput) -> Rewrite:
    """A more general question or a passage as it might stand in a document; only searched with, never evidence."""
    decided = await model.decide(RewriteDecision, REWRITE_RULES, given, rewrite_data(given))
    decision = decided.value
    if decision is None:
        return Rewrite(None, {}, decided.failure, decided.usage)
    query = one_line(decision.text, MAX_QUERY_CHARS)
    if not query or query.casefold() == given.question.casefold().strip():
        return Rewrite(None, {}, UNCHANGED, decided.usage)
    kind = "step_back_question" if decision.method == "step_back" else "hyde_document"
    trace = {"rewrite_method": decision.method, "rewritten_query": query, kind: query}
    return Rewrite(query, trace, usage=decided.usage)
