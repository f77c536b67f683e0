import pytest
from pydantic import ValidationError

from backend.rag.config import CandidateK, RagConfig


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, CandidateK(24, "multiplier")),
        ({"retrieval_top_k": 5, "retrieval_candidate_multiplier": 4}, CandidateK(20, "multiplier")),
        ({"retrieval_candidate_k": "40"}, CandidateK(40, "env")),
        ({"retrieval_candidate_k": 8}, CandidateK(8, "env")),
        ({"retrieval_candidate_k": " "}, CandidateK(24, "multiplier")),
    ],
)
def test_candidate_k(values, expected):
    assert RagConfig(**values).candidate_k() == expected


@pytest.mark.parametrize("value", [7, 0, -3])
def test_candidate_k_below_top_k_falls_to_the_multiplier_and_says_so(value):
    found = RagConfig(retrieval_candidate_k=value).candidate_k()
    assert (found.value, found.source) == (24, "multiplier")
    assert found.error == f"RETRIEVAL_CANDIDATE_K={value} is below RETRIEVAL_TOP_K=8"


@pytest.mark.parametrize(
    "values",
    [
        {"retrieval_candidate_k": "many"},
        {"retrieval_top_k": "8.5"},
        {"retrieval_top_k": 0},
        {"auto_merge_enabled": "perhaps"},
        {"auto_merge_threshold": 1},
        {"leaf_retrieve_level": 4},
        {"rerank_min_score": "nan"},
        {"rerank_timeout_seconds": 0},
    ],
)
def test_unparsable_values_are_refused(values):
    with pytest.raises(ValidationError) as refused:
        RagConfig(**values)
    assert refused.value.errors()[0]["loc"] == tuple(values)
