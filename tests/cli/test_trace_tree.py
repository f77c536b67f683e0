"""A trace in which every stage left something."""

from io import StringIO
from typing import Any

from rich.console import Console

from backend.cli.trace_tree import message_tree


def shown(trace: dict[str, Any] | None, **fields: Any) -> list[str]:
    message = {"id": "m", "status": "completed", "timestamp": "2026-01-01T00:00:00Z", "rag_trace": trace, **fields}
    text = StringIO()
    Console(file=text, width=1000).print(message_tree(message, 1.25, []))
    return [line.strip(" │├└─") for line in text.getvalue().splitlines()]


def chunk(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "filename": "a.pdf",
        "page_number": number,
        "chunk_id": str(number),
        "score": 0.5,
        "rrf_rank": number,
        **fields,
    }


def test_each_stage_tells_what_it_dropped() -> None:
    lines = shown(
        {
            "query": "q",
            "complexity": "complex",
            "complexity_reason": "two things",
            "sub_questions": ["one", "two"],
            "recall_count": 3,
            "candidate_k": 24,
            "retrieval_mode": "sparse",
            "initial_retrieved_chunks": [chunk(1), chunk(2), chunk(3)],
            "auto_merge_enabled": True,
            "auto_merge_applied": True,
            "auto_merge_replaced_chunks": 2,
            "auto_merge_steps": 1,
            "post_merge_candidate_count": 12,
            "rerank_enabled": True,
            "rerank_applied": True,
            "rerank_model": "judge",
            "candidate_count": 12,
            "post_rerank_count": 8,
            "post_threshold_count": 5,
            "rerank_min_score": 0.3,
            "retrieval_top_k": 8,
            "route": "rewrite",
            "retrieval_status": "needs_rewrite",
            "evidence_confidence": 0.0,
            "rewrite_method": "step_back",
            "step_back_question": "wider?",
            "rewrite_retrieved_chunks": [chunk(4)],
            "retrieved_chunks": [chunk(2, rerank_score=0.9, text="The \x1b[31mtext [bold]")],
            "hitl_prompt": "Which one?",
            "hitl_options": ["A", "B"],
        }
    )
    for line in (
        "Answer m · completed · 2026-01-01T00:00:00Z · 1.2 s",
        "Plan · complex · two things",
        "Recall · 3 passages · of 24 wanted · by words only",
        "[1] a.pdf, page 1 · score 0.5000 · rank 1 · not in the evidence",
        "[2] a.pdf, page 2 · score 0.5000 · rank 2",
        "Merge · 2 passages replaced by their sections · 1 of 2 levels · 12 left",
        "Rerank · applied · judge · 5 left",
        "dropped 4 · cut to the best 8",
        "dropped 3 · below the score floor 0.3",
        "Rewrite · step_back · wider?",
        "Recall · 1 passages · by words only · searched together with the first",
        "Grade · confidence 0.0",
        "Decision · rewrite · needs_rewrite",
        "Asked back · Which one?",
        "Evidence · 1 passages",
        '[1] a.pdf, page 2 · score 0.5000 · rank 2 · rerank 0.9000 · "The text [bold]"',
    ):
        assert line in lines, lines


def test_an_answer_without_a_search_and_an_empty_trace() -> None:
    assert shown(None)[1:] == ["No search: the answer was given without the documents"]
    assert shown({})[1:] == ["Question", "Evidence · 0 passages"]
