"""What counts as the expected text, and what is taken away for the second pass."""

import pytest

from backend.evaluation.answers import holds, removed_half, turns_of
from backend.evaluation.dataset import Question


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("“It scored 308 points.” [1]", "308"),
        ("the  Federal\nTrade-Commission", "federal trade commission"),
        ("ＡＢＣ公司", "abc"),
        ("只丢了 308分，排名第六", "308"),
        ("成立于1884年", "1884年"),
        ("(1,000 km)", "1,000 km"),
        ("?", "?"),
    ],
)
def test_an_answer_holds_the_expected_text(text: str, expected: str):
    assert holds(text, ["nothing of the kind", expected])


@pytest.mark.parametrize(
    ("text", "expected"),
    [("It scored 3080 points", "308"), ("the catalogue", "cat"), ("第六", "第七"), ("", "308"), ("308", "")],
)
def test_parts_of_words_and_numbers_do_not_count(text: str, expected: str):
    assert not holds(text, [expected] if expected else [])


def question(name: str, *right: str) -> Question:
    return Question(id=name, question="?", relevant=dict.fromkeys(right, 1))


def test_every_second_group_of_passages_is_removed_with_all_its_questions():
    asked = [question("1", "a"), question("2", "b"), question("3", "a"), question("4", "c", "d"), question("5", "b")]
    again, removed = removed_half(asked)
    assert ([one.id for one in again], removed) == (["1", "3", "4"], ["a", "c", "d"])
    assert turns_of(asked) == 8


def test_a_question_is_asked_again_only_when_nothing_right_is_left():
    again, removed = removed_half([question("1", "a"), question("2", "a", "b"), question("3", "c")])
    assert ([one.id for one in again], removed) == (["1", "3"], ["a", "c"])
