import pytest

from backend.rag.rules.measures import MEASURE
from backend.rag.rules.question import answer_kind, asked_terms, core, is_plain_question


@pytest.mark.parametrize(
    "question",
    [
        "How long does the warranty last?",
        "Who founded the company and its first factory?",
        "Is remote work allowed?",
        "保修期有多长？",
        "谁创立了这家公司",
    ],
)
def test_a_question_for_one_fact_is_plain(question: str):
    assert is_plain_question(question)


@pytest.mark.parametrize(
    "question",
    [
        "Compare the pump and the mixer.",
        "Which is heavier, the pump or the mixer?",
        "What is the difference between the plans?",
        "Who founded it and when did it close?",
        "Who books the flights, and which airline is preferred?",
        "Who founded it? When did it close?",
        "Tell me everything.",
        "What is it?",
        "🙂",
        "",
        "保修期多长，重量是多少？",
        "两个套餐有什么区别？",
        "哪个更重？",
        "什么？",
        "what " + "long " * 50 + "pump",
    ],
)
def test_what_is_several_questions_or_none_is_not_plain(question: str):
    assert not is_plain_question(question)


@pytest.mark.parametrize(
    ("question", "kind"),
    [
        ("When was it built?", "time"),
        ("In which year was it built?", "time"),
        ("How many people came?", "number"),
        ("Who came?", "person"),
        ("Where is it?", "place"),
        ("What is it?", "other"),
        ("哪一年建成的？", "time"),
        ("有多少人？", "number"),
        ("谁来了？", "person"),
        ("工厂在哪里？", "place"),
        ("这是什么？", "other"),
    ],
)
def test_the_kind_of_answer(question: str, kind: str):
    assert answer_kind(question) == kind


def test_courtesies_are_left_out_unless_nothing_else_is_there():
    assert core("Could you tell me how long the warranty lasts, please?") == "how long the warranty lasts, ?"
    assert core("你好，请问保修期有多长？") == "保修期有多长？"
    assert core("Hello, thank you!") == "Hello, thank you!"


def test_what_asks_is_no_content():
    assert asked_terms("How many seals has the pump?") == {"seal", "pump"}
    assert asked_terms("How heavy is the pump?") == {"pump", MEASURE}
    assert asked_terms("水泵的保修期是多少？") == {"水泵", "保修", "修期"}
    assert not asked_terms("什么？")
