import pytest

from backend.rag.decisions import DecisionInput, GradeDecision
from backend.rag.retrieve import Candidate
from backend.rag.rules import grade_rule
from tests.rag.library import identify


def passage(
    text: str, filename: str = "manual.md", heading: str | None = None, *, similarity: float | None = 0.85
) -> Candidate:
    return Candidate(
        chunk_id=identify(text),
        document_id=identify(filename),
        document_version=1,
        filename=filename,
        page_number=None,
        heading=heading,
        text=text,
        level=3,
        parent_id=None,
        root_id=None,
        score=0.03,
        rank=1,
        similarity=similarity,
    )


def grade(question: str, *passages: Candidate) -> GradeDecision:
    return grade_rule(DecisionInput(question, "en", list(passages)))


def test_a_passage_that_says_it_is_sufficient():
    found = grade("How long is the seal kept?", passage("The seal is kept for nine weeks. It is blue."))
    assert (found.relevance, found.answerability, found.route) == ("strong", "sufficient", "answer")
    assert found.ambiguity == "none"
    assert found.confidence > 0.75


def test_another_subject_is_no_knowledge():
    found = grade("Who won the chess championship?", passage("The seal is kept for nine weeks.", similarity=0.75))
    assert (found.relevance, found.answerability, found.route) == ("none", "none", "no_knowledge")


def test_a_passage_on_the_subject_that_does_not_say_it_is_no_answer():
    found = grade("Which company produced the seal?", passage("The blue seal is kept for nine weeks."))
    assert (found.answerability, found.route) == ("none", "rewrite")


def test_what_the_title_names_answers_nothing():
    text = "# Berlin office\n\nThe Berlin office has a week of 40 hours."
    assert grade("Does the Berlin office have parking?", passage(text, "berlin-office.md")).answerability == "none"
    assert grade("How many hours has a week in the Berlin office?", passage(text)).answerability == "sufficient"


@pytest.mark.parametrize("question", ["", "🙂 ?!", "what is the"])
def test_i01_a_question_without_a_word_finds_nothing(question: str):
    assert grade(question, passage("The seal is blue.")).answerability == "none"
    assert grade(question).route == "no_knowledge"


def test_documents_that_answer_differently_are_to_be_chosen_from():
    one = passage("The trial period lasts six weeks.", "north.md")
    two = passage("The trial period lasts two weeks.", "south.md")
    found = grade("How long is the trial period?", one, two)
    assert (found.ambiguity, found.route) == ("multiple_candidates", "scope_select")
    assert found.options == ["north.md", "south.md"]


def test_documents_that_say_the_same_are_no_choice():
    one = passage("The trial period lasts six weeks.", "north.md")
    two = passage("The trial period lasts six weeks.", "south.md")
    assert grade("How long is the trial period?", one, two).route == "answer"


def test_a_document_that_the_question_names_is_chosen_already():
    one = passage("The trial period lasts six weeks.", "north.md")
    two = passage("The trial period lasts two weeks.", "south.md")
    assert grade("How long is the trial period? south.md", one, two).ambiguity == "none"


@pytest.mark.parametrize(
    ("question", "texts"),
    [
        (
            "How many litres an hour does pump 5 deliver?",
            [f"Pump {n} stands in hall {n + 1}. It delivers {n * 7} litres an hour at {n - 2} bar." for n in (4, 5, 7)],
        ),
        (
            "How many litres does pump 5 deliver?",
            ["Pump 5 delivers 35 litres an hour. Pump 6 delivers 40 litres an hour."],
        ),
        ("5号泵的流量是多少？", [f"{n}号泵位于{n - 1}号厅，流量是每小时{n * 7}升。" for n in (4, 5, 6)]),
    ],
)
def test_a_name_is_one_with_its_number(question: str, texts: list[str]):
    found = grade(question, *(passage(text, f"{at}.md") for at, text in enumerate(texts)))
    assert (found.ambiguity, found.answerability) == ("none", "sufficient")


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("In 2021 the profit was 5 million. In 2022 the profit was 6 million.", ["2021", "2022"]),
        ("## Small\nThe profit is 5 percent.\n\n## Large\nThe profit is 9 percent.", ["Small", "Large"]),
        ("| Country | Profit |\n|---|---|\n| Peru | 5 |\n| Chile | 9 |", ["Peru", "Chile"]),
        ("The A10 makes a profit of 5 euros. The B20 makes a profit of 9 euros.", ["A10", "B20"]),
    ],
)
def test_values_for_different_things_ask_for_the_thing(text: str, options: list[str]):
    found = grade("How much is the profit?", passage(text))
    assert (found.ambiguity, found.route, found.options) == ("missing_slot", "clarify", options)
    assert found.missing_slots == [{"2021": "the year"}.get(options[0], "which one")]


def test_a_slot_in_chinese_is_named_in_chinese():
    found = grade("利润是多少？", passage("2021年利润为5万元。2022年利润为6万元。"))
    assert (found.route, found.options, found.missing_slots) == ("clarify", ["2021年", "2022年"], ["年份"])


def test_a_slot_that_the_question_fills_is_not_asked_for():
    text = "In 2021 the profit was 5 million. In 2022 the profit was 6 million."
    assert grade("How much was the profit in 2022?", passage(text)).ambiguity == "none"


def test_without_similarities_the_words_decide():
    found = grade("How long is the seal kept?", passage("The seal is kept for nine weeks.", similarity=None))
    assert found.answerability == "sufficient"


def test_a_long_list_of_the_like_gives_a_few_options():
    text = "\n".join(f"- The interval of pump {number} is {number * 7} hours." for number in range(300))
    found = grade("What is the interval of a pump?", passage(text))
    assert found.route in ("answer", "clarify")
    assert len(found.options) <= 6
