"""Synthesize: what the sub-questions found, as the evidence of the whole question."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from backend.rag.decisions import MAX_OPTIONS
from backend.rag.grade import ANSWERABLE, CLARIFY, NO_KNOWLEDGE, PARTIAL, SCOPE_SELECT, Resolved
from backend.rag.lookup import Found
from backend.rag.retrieve import Candidate, RetrievalMode
from backend.rag.trace import evidence_list

PER_PART = 4
"""Passages that each part may bring at least, however small the number for a whole question is."""

_COUNTS = (
    "recall_count",
    "auto_merge_replaced_chunks",
    "post_merge_candidate_count",
    "candidate_count",
    "post_rerank_count",
    "post_threshold_count",
)
_SETTINGS = (
    "auto_merge_enabled",
    "auto_merge_threshold",
    "rerank_enabled",
    "rerank_model",
    "rerank_endpoint",
    "rerank_timeout_seconds",
    "rerank_min_score",
)


@dataclass(frozen=True, slots=True)
class Part:
    """One sub-question, in the order of the plan: what it found, where it goes, and its question back if it has one."""

    index: int
    found: Found
    resolved: Resolved
    asks: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Synthesis:
    """The evidence of the whole question, where it goes, and the trace fields that follow from the parts."""

    kept: list[Candidate]
    resolved: Resolved
    trace: dict[str, Any]


def synthesize(parts: Sequence[Part], top_k: int) -> Synthesis:
    """The parts as one: evidence without repetitions, the parts taking turns, at most ``top_k`` passages or
    ``PER_PART`` for each part.

    A part that found nothing takes nothing from the others: with evidence the question is answered, as far as it goes.
    It is asked back only when no part can be answered, then once for all parts that ask.
    """
    parts = sorted(parts, key=lambda part: part.index)
    resolved = _resolve(parts)
    evident = [part for part in parts if part.resolved.route in ("answer", "clarify", "scope_select")]
    kept = [] if resolved.route == "no_knowledge" else _take_turns(evident)[: max(top_k, PER_PART * len(parts))]
    trace = _sums(parts) | _judgement(parts) | _asks(parts, resolved)
    trace |= {
        "sub_agent_count": len(parts),
        "synthesis_merged_count": len(kept),
        "sub_traces": [_sub_trace(part) for part in parts],
    }
    return Synthesis(kept, resolved, trace)


def _resolve(parts: Sequence[Part]) -> Resolved:
    routes = {part.resolved.route for part in parts}
    if all(part.resolved == ANSWERABLE for part in parts):
        return ANSWERABLE
    if "answer" in routes:
        return PARTIAL
    if "clarify" in routes:
        return CLARIFY
    return SCOPE_SELECT if "scope_select" in routes else NO_KNOWLEDGE


def _take_turns(parts: Sequence[Part]) -> list[Candidate]:
    """The first of each part, then the second of each, with the questions of all parts that found it."""
    turns = [
        (place, part.index, part.found.question, chunk) for part in parts for place, chunk in enumerate(part.found.kept)
    ]
    questions: dict[UUID, tuple[str, ...]] = {}
    first: dict[UUID, Candidate] = {}
    for _, _, question, chunk in sorted(turns, key=lambda turn: turn[:2]):
        questions[chunk.chunk_id] = (*questions.get(chunk.chunk_id, ()), question)
        first.setdefault(chunk.chunk_id, chunk)
    return [replace(chunk, for_questions=questions[key]) for key, chunk in first.items()]


def _sums(parts: Sequence[Part]) -> dict[str, Any]:
    """The stages of all parts together: counts are sums, what happened in one part has happened."""
    traces = [part.found.trace for part in parts]
    trace: dict[str, Any] = {name: traces[0][name] for name in _SETTINGS if name in traces[0]}
    trace |= {name: sum(one[name] for one in traces) for name in _COUNTS}
    trace["retrieval_mode"] = _mode([one["retrieval_mode"] for one in traces])
    trace["auto_merge_applied"] = any(one["auto_merge_applied"] for one in traces)
    trace["auto_merge_steps"] = max(one["auto_merge_steps"] for one in traces)
    trace["rerank_applied"] = any(one["rerank_applied"] for one in traces)
    if errors := [one["rerank_error"] for one in traces if "rerank_error" in one]:
        trace["rerank_error"] = errors[0]
    recalled = {chunk.chunk_id: chunk for part in parts for chunk in reversed(part.found.recalled)}
    ranked = sorted(recalled.values(), key=lambda chunk: chunk.rank)
    trace["initial_retrieved_chunks"] = evidence_list(ranked, text=False)
    return trace


def _mode(modes: Sequence[RetrievalMode]) -> RetrievalMode:
    """``hybrid`` if both arms served every part; else the arm that was alone."""
    alone: list[RetrievalMode] = [mode for mode in modes if mode != "hybrid"]
    return alone[0] if alone else "hybrid"


def _judgement(parts: Sequence[Part]) -> dict[str, Any]:
    """The grades of the parts as one: the best relevance, what is answered over all, the least confidence."""
    grades = [part.found.graded.decision for part in parts]
    given = [one for one in grades if one is not None]
    reasons = (f"{part.index + 1}: {reason}" for part in parts if (reason := part.found.trace.get("evidence_reason")))
    trace: dict[str, Any] = {"evidence_reason": "; ".join(reasons)}
    if not given:
        return trace
    answered = {one.answerability if one is not None else "none" for one in grades}
    trace["evidence_relevance"] = max((one.relevance for one in given), key=("none", "weak", "strong").index)
    trace["evidence_answerability"] = answered.pop() if len(answered) == 1 else "partial"
    trace["evidence_ambiguity"] = next((one.ambiguity for one in given if one.ambiguity != "none"), "none")
    trace["evidence_confidence"] = min(one.confidence for one in given)
    return trace


def _asks(parts: Sequence[Part], resolved: Resolved) -> dict[str, Any]:
    """What the parts leave open and, when the whole question is asked back, their questions as one."""
    asking = [part.asks for part in parts if part.asks]
    trace: dict[str, Any] = {"missing_slots": _distinct(slot for asks in asking for slot in asks["missing_slots"])}
    if resolved in (CLARIFY, SCOPE_SELECT):
        trace["hitl_prompt"] = " ".join(_distinct(asks["hitl_prompt"] for asks in asking))
        options = _distinct(option for asks in asking for option in asks["hitl_options"])
        trace["hitl_options"] = options[:MAX_OPTIONS]
    return trace


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _sub_trace(part: Part) -> dict[str, Any]:
    found = part.found
    return {
        "query": found.question,
        "retrieval_stage": "initial",
        **found.trace,
        **part.asks,
        "retrieval_empty": not found.kept,
        "route": part.resolved.route,
        "retrieval_status": part.resolved.status,
        "initial_retrieved_chunks": evidence_list(found.recalled, text=False),
        "retrieved_chunks": evidence_list(found.kept, text=False),
    }
