import json
import math
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backend.schemas.chat import (
    RagSubTrace,
    RagTrace,
    RagTraceFields,
    RetrievedChunk,
    _normalize_chunks,
    _normalize_trace_fields,
    normalize_rag_sub_trace,
    normalize_rag_trace,
)

UNHURRIED = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
EVIDENCE = [name for name in RagTraceFields.model_fields if name.endswith("retrieved_chunks")]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=4),
    max_leaves=12,
)


def loosely(fields: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[Any, Any]]:
    """Dicts with some of ``fields``, any value in them, and unknown keys besides."""
    return st.dictionaries(st.sampled_from(fields) | st.text(max_size=6), values, max_size=12)


CHUNKS = st.lists(loosely(list(RetrievedChunk.model_fields), ANYTHING) | ANYTHING, max_size=4)
SUB_TRACES = loosely(list(RagTraceFields.model_fields), ANYTHING | CHUNKS)
TRACES = loosely([*RagTrace.model_fields], ANYTHING | CHUNKS | st.lists(SUB_TRACES | ANYTHING, max_size=3))

VALID_CHUNK = {
    "filename": "a.pdf",
    "page_number": 3,
    "text": "t",
    "score": 0.5,
    "rrf_rank": 1,
    "rerank_score": 0.9,
    "chunk_id": "c",
    "document_id": "d",
    "document_version": 2,
    "heading": "h",
}
VALID_TRACE: dict[str, Any] = {
    "tool_used": True,
    "tool_name": "search_knowledge_base",
    "query": "q",
    "retrieval_stage": "initial",
    "complexity": "simple",
    "sub_questions": ["a", "b"],
    "candidate_k": 24,
    "candidate_k_source": "multiplier",
    "rerank_timeout_seconds": 5,
    "retrieval_empty": False,
    "route": "answer",
    "retrieval_status": "answerable",
    "evidence_confidence": 0.5,
    "retrieved_chunks": [VALID_CHUNK],
    "hitl_options": ["x"],
}


@UNHURRIED
@given(CHUNKS | ANYTHING)
def test_normalize_chunks_keeps_items_with_a_filename_and_of_each_declared_keys_only(chunks: Any):
    kept = _normalize_chunks(chunks)
    for item in kept:
        assert item["filename"]
        assert set(item) <= set(RetrievedChunk.model_fields)
        RetrievedChunk.model_validate(item)
    assert _normalize_chunks(kept) == kept


def test_normalize_chunks_examples():
    assert _normalize_chunks([VALID_CHUNK]) == [VALID_CHUNK]
    assert _normalize_chunks([{"text": "no name"}, {"filename": ""}, {"filename": 3}, "x", None]) == []
    assert _normalize_chunks([{"filename": "a", "score": "high", "page_number": "iv", "x": 1, "heading": None}]) == [
        {"filename": "a", "page_number": "iv"}
    ]
    assert _normalize_chunks({"filename": "a"}) == []


@UNHURRIED
@given(SUB_TRACES)
def test_normalize_trace_fields_declared_fields_only_and_every_evidence_list_normalized(trace: dict[Any, Any]):
    kept = _normalize_trace_fields(trace)
    assert set(kept) <= set(RagTraceFields.model_fields)
    for name in EVIDENCE:
        if isinstance(trace.get(name), list):
            assert kept[name] == _normalize_chunks(trace[name])
        else:
            assert name not in kept
    assert _normalize_trace_fields(kept) == kept


@UNHURRIED
@given(SUB_TRACES | ANYTHING)
def test_normalize_rag_sub_trace_never_raises_and_is_idempotent(trace: Any):
    kept = normalize_rag_sub_trace(trace)
    if kept is None:
        return
    RagSubTrace.model_validate(kept)
    assert normalize_rag_sub_trace(kept) == kept


@UNHURRIED
@given(TRACES | ANYTHING)
@example({"query": "\ud800", "sub_traces": [{"query": "a\x00"}]})
@example({"evidence_confidence": math.nan, "rerank_min_score": math.inf})
def test_normalize_rag_trace_never_raises_is_idempotent_and_can_be_stored(trace: Any):
    kept = normalize_rag_trace(trace)
    if kept is None:
        return
    assert None not in kept.values()
    RagTrace.model_validate(kept)
    assert normalize_rag_trace(kept) == kept
    stored = json.dumps(kept, ensure_ascii=False, allow_nan=False).encode()  # neither surrogates nor NaN
    assert "\\u0000" not in stored.decode()
    assert normalize_rag_trace(json.loads(stored)) == kept


def test_normalize_rag_trace_a_valid_trace_is_kept_as_it_is():
    trace = {**VALID_TRACE, "sub_traces": [VALID_TRACE]}
    assert normalize_rag_trace(trace) == trace
    assert normalize_rag_sub_trace(VALID_TRACE) == VALID_TRACE


@UNHURRIED
@given(st.sampled_from(sorted(VALID_TRACE)), ANYTHING)
def test_normalize_rag_trace_a_wrong_value_loses_its_field_only(name: str, value: Any):
    kept = normalize_rag_trace({**VALID_TRACE, name: value})
    assert kept is not None
    others = {key: item for key, item in VALID_TRACE.items() if key != name}
    assert {key: item for key, item in kept.items() if key != name} == others


@UNHURRIED
@given(st.dictionaries(st.text(max_size=8).filter(lambda key: key not in RagTrace.model_fields), ANYTHING))
def test_normalize_rag_trace_unknown_fields_are_dropped(unknown: dict[str, Any]):
    assert normalize_rag_trace({**unknown, **VALID_TRACE}) == VALID_TRACE
    assert normalize_rag_trace(unknown) is None


def test_normalize_what_is_no_dict_or_empty_gives_none():
    for nothing in (None, {}, [], "trace", 3, [VALID_TRACE]):
        assert normalize_rag_trace(nothing) is None
        assert normalize_rag_sub_trace(nothing) is None


def test_normalize_sub_trace_has_no_sub_traces():
    assert normalize_rag_sub_trace({"query": "q", "sub_traces": [{"query": "r"}]}) == {"query": "q"}
    assert normalize_rag_trace({"query": "q", "sub_traces": [{"query": "r"}, {}, "x"]}) == {
        "query": "q",
        "sub_traces": [{"query": "r"}],
    }
