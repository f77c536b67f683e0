import pytest

from backend.rag.decisions import MAX_SUB_QUESTIONS, DecisionInput
from backend.rag.rules import plan_rule


@pytest.mark.parametrize(
    ("question", "parts"),
    [
        ("Compare Alpha and Beta", ["What is Alpha?", "What is Beta?"]),
        (
            "What is the difference between Alpha and Beta in weight?",
            ["What is the weight of Alpha?", "What is the weight of Beta?"],
        ),
        (
            "Compare the price of Alpha and that of Beta.",
            ["What is the price of Alpha?", "What is the price of Beta?"],
        ),
        ("What is the difference of pump 7 and pump 8?", ["What is pump 7?", "What is pump 8?"]),
        ("How does Alpha differ from Beta?", ["What is Alpha?", "What is Beta?"]),
        ("How do Alpha and Beta differ?", ["What is Alpha?", "What is Beta?"]),
        ("Alpha vs. Beta", ["What is Alpha?", "What is Beta?"]),
        ("Which is heavier, Alpha or Beta?", ["Which is heavier, Alpha?", "Which is heavier, Beta?"]),
        ("Alpha和Beta有什么区别？", ["Alpha是什么？", "Beta是什么？"]),
        ("比较一下甲与乙的价格", ["甲的价格是什么？", "乙的价格是什么？"]),
        ("甲和乙在价格方面有什么不同？", ["甲的价格是什么？", "乙的价格是什么？"]),
        ("甲跟乙哪个更重？", ["甲更重吗？", "乙更重吗？"]),
        (
            "Who founded Alpha and when was Beta closed?",
            ["Who founded Alpha?", "when was Beta closed?"],
        ),
        (
            "What is the price of Alpha, and how heavy is it?",
            ["What is the price of Alpha?", "how heavy is it (Alpha)?"],
        ),
        ("甲是谁创立的，乙什么时候关闭？", ["甲是谁创立的？", "乙什么时候关闭？"]),
    ],
)
def test_comparisons_and_joined_questions_are_split(question: str, parts: list[str]):
    plan = plan_rule(DecisionInput(question, "en"))
    assert (plan.complexity, plan.sub_questions) == ("complex", parts)


@pytest.mark.parametrize(
    "question",
    [
        "What is the price of Alpha?",
        "How and when was it built?",
        "How many points were scored in the game versus Beta?",
        "Which party is strongest in the north and the east?",
        "甲和乙支持哪个政党？",
        "",
        "🙂",
    ],
)
def test_what_asks_one_thing_stays_whole(question: str):
    assert plan_rule(DecisionInput(question, "en")).complexity == "simple"


def test_there_are_never_more_parts_than_allowed():
    question = " ".join(f"Where is factory {number}?" for number in range(9))
    assert len(plan_rule(DecisionInput(question, "en")).sub_questions) == MAX_SUB_QUESTIONS
