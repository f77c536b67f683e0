import pytest
from langchain_core.messages import HumanMessage, SystemMessage

from backend.infra.llm.extractive import ExtractiveChatModel
from backend.rag.decisions import DECISION_INPUT, DecisionInput, PlanDecision, RewriteDecision
from backend.rag.rules import SCHEMA_RULES, answer_from_passages, rewrite_rule
from backend.rag.rules.spelling import respelled
from tests.rag.rules.test_grade import passage


def test_the_second_query_is_the_core_of_the_question_near_the_best_passage():
    question = "Hello there. Could you tell me how long the warrenty lasts?"
    found = passage("The warranty lasts two years.", heading="Manual > Guarantee")
    rewritten = rewrite_rule(DecisionInput(question, "en", [found]))
    assert (rewritten.method, rewritten.text) == ("step_back", "how long the warranty lasts? Guarantee")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How long is the warrenty?", "How long is the warranty?"),
        ("How long is the warranty?", "How long is the warranty?"),
        ("What are warranties?", "What are warranties?"),  # the same word in another form
        ("What is WARENTY?", "What is WARENTY?"),
        ("What is elephant?", "What is elephant?"),
        ("保修期多长？", "保修期多长？"),
    ],
)
def test_only_words_that_are_nearly_there_are_respelt(question: str, expected: str):
    assert respelled(question, ["The warranty of the pump lasts two years."]) == expected


async def test_the_model_decides_by_the_rule_of_the_schema():
    model = ExtractiveChatModel(answer_rule=answer_from_passages, schema_rules=SCHEMA_RULES)
    given = DecisionInput("Compare Alpha and Beta", "en")
    messages = [SystemMessage("rules"), HumanMessage("{}", additional_kwargs={DECISION_INPUT: given})]
    plan = await model.with_structured_output(PlanDecision).ainvoke(messages)
    assert isinstance(plan, PlanDecision)
    assert plan.sub_questions == ["What is Alpha?", "What is Beta?"]
    with pytest.raises(NotImplementedError):
        await model.with_structured_output(RewriteDecision).ainvoke([HumanMessage("no input")])
