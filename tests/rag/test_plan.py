from dataclasses import replace

import pytest

from backend.rag.decisions import DecisionInput
from backend.rag.plan import PLAIN, Plan, make_plan
from backend.rag.structured import DecisionModel
from tests.rag.models import fast_model
from tests.support.fake_llm import FakeLLM, decided

COMPLEX = "Compare the warranty of the pump and the mixer"


async def plan(llm: FakeLLM, question: str) -> Plan:
    async with fast_model(llm) as model:
        made = await make_plan(DecisionModel(model, 20), DecisionInput(question, "en"))
    assert (made.usage is not None) == bool(llm.requests)
    return replace(made, usage=None)


@pytest.mark.parametrize(
    "question", ["How long is the warranty?", "Who wrote the manual?", "保修期多长？", "谁是法国总统？"]
)
async def test_a_plain_question_asks_no_model(question):
    async with FakeLLM() as llm:
        assert await plan(llm, question) == Plan("simple", PLAIN)
        assert llm.requests == []


@pytest.mark.parametrize(
    "question",
    [
        COMPLEX,
        "What does the pump cost? How long does it last?",
        "What is the difference between A and B?",
        "比较水泵和搅拌机的保修期",
        "水泵和搅拌机有什么区别？",
        "保修期多长？怎么申请？",
        "word " * 60,
    ],
)
async def test_any_other_question_is_one_call(question):
    async with FakeLLM() as llm:
        made = await plan(llm, question)
        assert (made.complexity, made.reason, made.sub_questions) == ("simple", "one fact", [])
        assert len(llm.decisions("plan")) == len(llm.requests) == 1


async def test_parts_are_cleaned_and_at_most_four():
    parts = ["Pump\n warranty?", " ", "Mixer warranty?", "Pump warranty?", "c?", "d?", "e?"]
    async with FakeLLM() as llm:
        llm.decide("plan", decided(complexity="complex", reason="two\nthings", sub_questions=parts))
        made = await plan(llm, COMPLEX)
    assert made == Plan("complex", "two things", ["Pump warranty?", "Mixer warranty?", "c?", "d?"])


@pytest.mark.parametrize("parts", [[], ["Pump warranty?"], ["Same?", "Same? "]])
async def test_less_than_two_parts_are_one_question(parts):
    async with FakeLLM() as llm:
        llm.decide("plan", decided(complexity="complex", reason="two things", sub_questions=parts))
        made = await plan(llm, COMPLEX)
    assert made == Plan("simple", "less than two parts: two things")


async def test_parts_of_a_simple_plan_do_not_count():
    async with FakeLLM() as llm:
        llm.decide("plan", decided(complexity="simple", reason="one", sub_questions=["a?", "b?"]))
        assert await plan(llm, COMPLEX) == Plan("simple", "one")
