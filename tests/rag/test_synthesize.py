from typing import Any

from backend.rag.decisions import GradeDecision
from backend.rag.grade import ANSWERABLE, NO_KNOWLEDGE, PARTIAL, SCOPE_SELECT, Graded, Resolved
from backend.rag.lookup import Found
from backend.rag.retrieve import candidates
from backend.rag.synthesize import Part, synthesize
from tests.rag.library import leaf

COUNTED = {
    "recall_count": 2,
    "auto_merge_enabled": True,
    "auto_merge_applied": False,
    "auto_merge_threshold": 2,
    "auto_merge_replaced_chunks": 0,
    "auto_merge_steps": 0,
    "post_merge_candidate_count": 2,
    "rerank_enabled": True,
    "rerank_applied": True,
    "candidate_count": 2,
    "post_rerank_count": 2,
    "post_threshold_count": 2,
    "retrieval_mode": "hybrid",
}


def part(index: int, resolved: Resolved, grade: GradeDecision | None = None, **trace: Any) -> Part:
    chunks = candidates([leaf(f"{index}")])
    return Part(index, Found(f"q{index}?", chunks, chunks, Graded(grade), {**COUNTED, **trace}), resolved)


def test_what_happened_in_one_part_has_happened():
    merged = {"auto_merge_applied": True, "auto_merge_steps": 2, "auto_merge_replaced_chunks": 3}
    failed = {"rerank_applied": False, "rerank_error": "provider_timeout"}
    parts = [part(0, ANSWERABLE, **merged), part(1, ANSWERABLE, retrieval_mode="sparse", **failed)]
    trace = synthesize(parts, 8).trace
    expected = {
        "retrieval_mode": "sparse",
        "recall_count": 4,
        "auto_merge_applied": True,
        "auto_merge_steps": 2,
        "auto_merge_replaced_chunks": 3,
        "rerank_enabled": True,
        "rerank_applied": True,
        "rerank_error": "provider_timeout",
    }
    assert expected.items() <= trace.items()


def test_parts_count_in_the_order_of_the_plan_whatever_came_first():
    trace = synthesize([part(1, ANSWERABLE), part(0, ANSWERABLE)], 8).trace
    assert [sub["query"] for sub in trace["sub_traces"]] == ["q0?", "q1?"]


def test_ungraded_parts_say_nothing_of_relevance():
    reasons = [f"not graded: {code}" for code in ("unreadable", "provider_timeout")]
    parts = [part(at, PARTIAL, evidence_reason=reason) for at, reason in enumerate(reasons)]
    whole = synthesize(parts, 8)
    assert whole.resolved == PARTIAL
    assert whole.trace["evidence_reason"] == "1: not graded: unreadable; 2: not graded: provider_timeout"
    assert "evidence_relevance" not in whole.trace


def test_grades_become_one():
    strong = GradeDecision(relevance="strong", answerability="sufficient", confidence=0.9)
    weak = GradeDecision(relevance="weak", answerability="none", ambiguity="multiple_candidates", confidence=0.4)
    trace = synthesize([part(0, ANSWERABLE, strong), part(1, NO_KNOWLEDGE, weak)], 8).trace
    assert (trace["evidence_relevance"], trace["evidence_answerability"]) == ("strong", "partial")
    assert (trace["evidence_ambiguity"], trace["evidence_confidence"]) == ("multiple_candidates", 0.4)


def test_a_choice_in_each_part_that_could_answer_is_a_choice():
    asks = {"missing_slots": [], "hitl_prompt": "Which?", "hitl_options": ["a.pdf", "b.pdf"]}
    one = part(0, SCOPE_SELECT)
    asking = Part(one.index, one.found, one.resolved, asks)
    whole = synthesize([asking, part(1, NO_KNOWLEDGE)], 8)
    assert whole.resolved == SCOPE_SELECT
    assert (whole.trace["hitl_prompt"], whole.trace["hitl_options"]) == ("Which?", ["a.pdf", "b.pdf"])
