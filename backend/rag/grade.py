"""Grade: what the passages are worth for the question, and by plain rules where to go with them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from langchain_core.messages.ai import UsageMetadata

from backend.catalogue import Language, say
from backend.rag.decisions import MAX_OPTIONS, DecisionInput, GradeDecision, Route
from backend.rag.prompts import GRADE_RULES, grade_data, one_line
from backend.rag.retrieve import Candidate
from backend.rag.structured import DecisionModel
from backend.schemas.chat import RetrievalStatus

MAX_PROMPT_CHARS = 300
MAX_OPTION_CHARS = 200
MAX_SLOTS = 6
MAX_SLOT_CHARS = 80

Evidence = Literal["nothing", "below_floor", "ungraded", "graded"]
"""What there is to go by: nothing recalled; passages, but none at or above the reranker's floor; passages that could
not be graded; graded passages."""

_ASKING = ("clarify", "scope_select")
_LINK = re.compile(r"://|\]\s*\(|<\w")


class Resolved(NamedTuple):
    """Where a question goes, and what is said of its evidence."""

    route: Route
    status: RetrievalStatus


ANSWERABLE = Resolved("answer", "answerable")
PARTIAL = Resolved("answer", "partial")
REWRITE = Resolved("rewrite", "needs_rewrite")
CLARIFY = Resolved("clarify", "needs_clarification")
SCOPE_SELECT = Resolved("scope_select", "needs_scope_selection")
NO_KNOWLEDGE = Resolved("no_knowledge", "no_knowledge")


@dataclass(frozen=True, slots=True)
class Graded:
    """``failure``: why the model judged nothing."""

    decision: GradeDecision | None
    failure: str | None = None
    usage: UsageMetadata | None = None


async def grade(model: DecisionModel, given: DecisionInput) -> Graded:
    """What ``given.candidates`` (at least one) are worth; no decision, with the reason, when the model fails."""
    decided = await model.decide(GradeDecision, GRADE_RULES, given, grade_data(given, model.passage_tokens))
    return Graded(decided.value, decided.failure, decided.usage)


def resolve_route(
    evidence: Evidence, grade: GradeDecision | None, *, may_rewrite: bool, may_ask: bool, choices: bool
) -> Resolved:
    """The route, by the table in docs/retrieval.md, from which a test takes what it expects.

    ``grade`` is there if ``evidence`` is ``graded``; ``choices``: there are two things or more to choose from.
    """
    if evidence == "nothing":
        return NO_KNOWLEDGE
    if evidence == "below_floor":
        return REWRITE if may_rewrite else NO_KNOWLEDGE
    if grade is None:
        return PARTIAL
    if grade.relevance == "none":
        return REWRITE if may_rewrite and grade.route != "no_knowledge" else NO_KNOWLEDGE
    if grade.route in _ASKING and (grade.ambiguity != "none" or grade.answerability != "sufficient"):
        return _ask(grade, choices) if may_ask else _keep(grade)
    return _by_answerability(grade, may_rewrite)


def _ask(grade: GradeDecision, choices: bool) -> Resolved:
    return SCOPE_SELECT if grade.route == "scope_select" and choices else CLARIFY


def _keep(grade: GradeDecision) -> Resolved:
    return ANSWERABLE if grade.answerability == "sufficient" else PARTIAL


def _by_answerability(grade: GradeDecision, may_rewrite: bool) -> Resolved:
    if grade.answerability == "sufficient":
        return ANSWERABLE
    if grade.answerability == "partial":
        return REWRITE if may_rewrite and grade.route == "rewrite" else PARTIAL
    return REWRITE if may_rewrite and grade.route != "no_knowledge" else NO_KNOWLEDGE


def scope_options(grade: GradeDecision | None, candidates: Sequence[Candidate]) -> list[str]:
    """What may be chosen from: the model's options where they are valid and at least two, else the files."""
    options = valid_options(grade.options) if grade is not None else []
    return options if len(options) > 1 else valid_options([candidate.filename for candidate in candidates])


def question_back(
    grade: GradeDecision | None, route: Route, candidates: Sequence[Candidate], language: Language
) -> dict[str, Any]:
    """The trace fields of a question back: the model's prompt and options where they are valid, else the catalogue's
    prompt and, for a choice, the names of the files."""
    prompt = _valid_line(grade.prompt or "", MAX_PROMPT_CHARS) if grade is not None else None
    options = scope_options(grade, candidates) if route == "scope_select" else []
    if route == "clarify" and grade is not None:
        options = valid_options(grade.options)
    slots = _slots(grade)
    return {
        "missing_slots": slots,
        "hitl_prompt": prompt or _own_prompt(route, slots, language),
        "hitl_options": options,
    }


def _own_prompt(route: Route, slots: Sequence[str], language: Language) -> str:
    if route == "scope_select":
        return say("hitl_scope_select", language)
    return say("hitl_clarify_slots", language, slots=", ".join(slots)) if slots else say("hitl_clarify", language)


def grade_trace(graded: Graded) -> dict[str, Any]:
    """The trace fields of the grade; the reason alone when there is none."""
    decision = graded.decision
    if decision is None:
        return {"evidence_reason": f"not graded: {graded.failure}"}
    return {
        "evidence_relevance": decision.relevance,
        "evidence_answerability": decision.answerability,
        "evidence_ambiguity": decision.ambiguity,
        "evidence_confidence": decision.confidence,
        "evidence_reason": one_line(decision.reason),
        "missing_slots": _slots(decision),
    }


def valid_options(options: Sequence[str]) -> list[str]:
    """The options that are one line of acceptable length and hold no link, without repetitions."""
    valid = dict.fromkeys(line for option in options if (line := _valid_line(option, MAX_OPTION_CHARS)))
    return list(valid)[:MAX_OPTIONS]


def _slots(grade: GradeDecision | None) -> list[str]:
    slots = dict.fromkeys(one_line(slot, MAX_SLOT_CHARS) for slot in (grade.missing_slots if grade else []))
    return [slot for slot in slots if slot][:MAX_SLOTS]


def _valid_line(text: str, limit: int) -> str | None:
    """``text`` if it can be shown as the server's own words: a passage may have told the model what to write."""
    line = text.strip()
    fit = line and len(line) <= limit and len(line.splitlines()) == 1 and not _LINK.search(line)
    return line if fit else None
