"""The measures on rankings that are worked out by hand."""

import math

import pytest

from backend.evaluation.measures import MRR, NDCG, RECALL, measure

SECOND = 1 / math.log2(3)
"""What a gain of 1 counts in the second place."""


def test_the_only_right_passage_in_second_place():
    found = measure({"q": {"a": 1}}, {"q": ["x", "a"]})
    assert found == pytest.approx({NDCG: SECOND, RECALL: 1.0, MRR: 0.5})


def test_grades_are_gains_and_any_grade_above_zero_is_right():
    found = measure({"q": {"a": 2, "b": 1, "x": 0}}, {"q": ["x", "b", "a"]})
    dcg, best = SECOND + 2 / math.log2(4), 2 + SECOND
    assert found == pytest.approx({NDCG: dcg / best, RECALL: 1.0, MRR: 0.5})


def test_recall_looks_at_five_and_ndcg_at_ten():
    ranked = [f"x{n}" for n in range(5)] + ["a"] + [f"y{n}" for n in range(4)] + ["b"]
    found = measure({"q": {"a": 1, "b": 1}}, {"q": ranked})
    assert found == pytest.approx({NDCG: (1 / math.log2(7)) / (1 + SECOND), RECALL: 0.0, MRR: 1 / 6})


def test_a_question_that_found_nothing_counts_as_nothing():
    found = measure({"q": {"a": 1}, "r": {"a": 1}, "s": {"b": 1}}, {"q": ["a"], "r": []})
    assert found == pytest.approx({NDCG: 1 / 3, RECALL: 1 / 3, MRR: 1 / 3})
