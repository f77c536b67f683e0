"""Documents and questions in two languages through the whole pipeline, as it runs without a provider.

The floors are what the half of the questions has to reach that no threshold was set on, not what every question does:
docs/extractive.md shows the table as measured.
"""

import asyncio
from collections import Counter

import pytest

from tests.rag.routes.measure import Outcome, measure, questions, written_documents

pytestmark = pytest.mark.xdist_group("routes")


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return asyncio.run(measure(written_documents(), questions("questions.jsonl")))


def test_the_questions_are_of_every_kind_in_both_languages_and_halves():
    asked = questions("questions.jsonl")
    assert len(asked) >= 60
    kinds = Counter((question.kind, question.lang, question.half) for question in asked)
    assert len(kinds) == 7 * 2 * 2
    assert min(kinds.values()) >= 2


@pytest.mark.parametrize(("half", "right", "holds"), [("set", 0.9, 0.9), ("report", 0.8, 0.75)])
def test_most_questions_take_the_right_route(outcomes: list[Outcome], half: str, right: float, holds: float):
    asked = [outcome for outcome in outcomes if outcome.asked.half == half]
    taken = [outcome for outcome in asked if outcome.right]
    assert len(taken) / len(asked) >= right, [outcome.asked.id for outcome in asked if not outcome.right]
    assert sum(outcome.holds for outcome in taken) / len(taken) >= holds


def test_what_a_document_says_is_answered_and_cited(outcomes: list[Outcome]):
    asked = [outcome for outcome in outcomes if outcome.asked.kind == "answerable"]
    assert sum(outcome.right and outcome.holds for outcome in asked) / len(asked) >= 0.9
    assert all("[1]" in outcome.answer for outcome in asked if outcome.right)


def test_most_of_what_no_document_says_is_refused(outcomes: list[Outcome]):
    asked = [outcome for outcome in outcomes if outcome.asked.kind == "unknown"]
    assert sum(outcome.right for outcome in asked) / len(asked) >= 0.75
