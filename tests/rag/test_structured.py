"""What a model returns in place of a decision, over real HTTP: twelve shapes, refusals, and no answer in time."""

import json
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from backend.rag.decisions import DecisionInput, GradeDecision, PlanDecision, RewriteDecision
from backend.rag.pipeline import RagResult
from backend.rag.prompts import GRADE_RULES, PLAN_RULES
from backend.rag.structured import DecisionModel, parse, read
from tests.rag.models import fast_model
from tests.rag.running import SEVERAL, Steps, ask, library
from tests.support.fake_llm import FakeLLM, Reply, decided, hang_after, status, text, tool_call

Step = Literal["plan", "grade", "rewrite"]

VALID: dict[Step, dict[str, Any]] = {
    "plan": {"complexity": "complex", "reason": "two things", "sub_questions": ["Pump warranty?", "Mixer warranty?"]},
    "grade": {"relevance": "strong", "answerability": "sufficient", "route": "answer", "reason": "it is stated"},
    "rewrite": {"method": "step_back", "text": "guarantee periods", "reason": "another word"},
}
ENUM = {"plan": "complexity", "grade": "relevance", "rewrite": "method"}
WEAK = decided(relevance="weak", answerability="partial", route="rewrite", reason="vague")
DEFAULT_STEP = {
    "plan": "How to look this up could not be planned; it is looked up as one question",
    "grade": "The passages could not be checked; they are used as they are",
    "rewrite": "No better wording could be made; what was found stays",
}

SHAPES = [
    "valid",
    "fenced",
    "prose and JSON",
    "trailing comma",
    "truncated",
    "empty",
    "wrong enum",
    "extra keys",
    "null",
    "array",
    "I cannot",
    "tool call",
]
READABLE = {"valid", "fenced", "prose and JSON", "trailing comma", "extra keys"}


def reply(shape: str, step: Step) -> Reply:
    """``VALID`` in that shape."""
    fields = VALID[step]
    whole = json.dumps(fields)
    shapes: dict[str, Reply] = {
        "valid": text(whole),
        "fenced": text(f"```json\n{whole}\n```"),
        "prose and JSON": text(f"Here is my decision:\n\n{whole}\n\nI hope this helps."),
        "trailing comma": text(f"{whole[:-1]},}}"),
        "truncated": text(whole[:-9], finish="length"),
        "empty": text(""),
        "wrong enum": decided(**{**fields, ENUM[step]: "rather"}),
        "extra keys": decided(**fields, thoughts=["a"], score={"x": 1}),
        "null": text("null"),
        "array": text("[1, 2]"),
        "I cannot": text("I cannot help with that."),
        "tool call": tool_call("search_knowledge_base", {"query": "warranty"}),
    }
    return shapes[shape]


async def run(llm: FakeLLM, step: Step, steps: Steps) -> RagResult:
    """A question that reaches ``step``; all other steps are contented."""
    if step == "rewrite":
        llm.decide("grade", WEAK)
    return await ask(llm, library("a", "b"), SEVERAL, steps=steps)


def assert_taken(step: Step, trace: dict[str, Any]) -> None:
    if step == "plan":
        assert (trace["complexity"], trace["complexity_reason"]) == ("complex", "two things")
        assert trace["sub_questions"] == ["Pump warranty?", "Mixer warranty?"]
    elif step == "grade":
        assert (trace["evidence_relevance"], trace["evidence_reason"]) == ("strong", "it is stated")
    else:
        assert (trace["rewrite_method"], trace["rewritten_query"]) == ("step_back", "guarantee periods")
    assert (trace["route"], trace["retrieval_status"]) == ("answer", "answerable")


def assert_defaulted(step: Step, trace: dict[str, Any], code: str) -> None:
    status = "answerable"
    if step == "plan":
        assert (trace["complexity"], trace["complexity_reason"]) == ("simple", f"not planned: {code}")
        assert trace["sub_questions"] == []
    elif step == "grade":
        status = "partial"
        assert trace["evidence_reason"] == f"not graded: {code}"
        assert "evidence_relevance" not in trace
    else:
        status = "partial"
        assert trace["evidence_reason"] == f"vague; not rewritten: {code}"
        assert "rewrite_method" not in trace
    assert (trace["route"], trace["retrieval_status"]) == ("answer", status)


@pytest.mark.parametrize("step", ["plan", "grade", "rewrite"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_e11_each_shape_is_read_or_falls_to_the_default_of_its_step(shape: str, step: Step):
    steps = Steps()
    async with FakeLLM() as llm:
        llm.decide(step, reply(shape, step), reply(shape, step))
        result = await run(llm, step, steps)
        asked = len(llm.decisions(step))
    assert result.chunks
    if shape in READABLE:
        assert_taken(step, result.trace)
        assert DEFAULT_STEP[step] not in steps.labels
        assert asked == 1
    else:
        assert_defaulted(step, result.trace, "unreadable")
        assert steps.labels.count(DEFAULT_STEP[step]) == 1
        assert asked == 2


@pytest.mark.parametrize("step", ["plan", "grade", "rewrite"])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape not in READABLE])
async def test_e11_the_second_try_is_taken(shape: str, step: Step):
    async with FakeLLM() as llm:
        llm.decide(step, reply(shape, step), reply("valid", step))
        result = await run(llm, step, Steps())
        first, second, *_ = llm.decisions(step)
    assert_taken(step, result.trace)
    assert second.messages[0] == first.messages[0]
    assert second.messages[1]["content"].startswith(first.messages[1]["content"])
    assert "could not be read" in second.messages[1]["content"]


REFUSALS = [
    (status(401, {"error": {"message": "bad key"}}), "provider_rejected"),
    (status(500, "<html>"), "provider_unavailable"),
    (status(400, {"error": {"code": "content_filter", "message": "no"}}), "content_filtered"),
    (text("null", finish="content_filter"), "unreadable"),
]


@pytest.mark.parametrize("step", ["plan", "grade", "rewrite"])
@pytest.mark.parametrize(("answer", "code"), REFUSALS)
async def test_e11_a_refusal_falls_to_the_default(step: Step, answer: Reply, code: str):
    steps = Steps()
    async with FakeLLM() as llm:
        llm.decide(step, *[answer] * 3)
        result = await run(llm, step, steps)
    assert_defaulted(step, result.trace, code)
    assert DEFAULT_STEP[step] in steps.labels


@pytest.mark.parametrize("step", ["plan", "grade", "rewrite"])
async def test_e11_a_step_that_is_not_answered_in_time_falls_to_the_default(step: Step):
    async with FakeLLM() as llm:
        if step == "rewrite":
            llm.decide("grade", WEAK)
        llm.decide(step, hang_after(0))
        result = await ask(llm, library("a"), SEVERAL, decision_timeout_seconds=1.5)
        hung = llm.decisions(step)[0]
        await hung.ended.wait()
        assert hung.closed_by_client
    assert_defaulted(step, result.trace, "provider_timeout")


async def test_a_provider_that_refuses_the_schema_is_asked_in_words_from_then_on():
    refusal = status(400, {"error": {"message": "This response_format type is unavailable now"}})
    async with FakeLLM() as llm, fast_model(llm) as model:
        llm.decide("grade", refusal)
        asked = DecisionModel(model, 20)
        for _ in range(2):
            decision = await asked.decide(GradeDecision, GRADE_RULES, DecisionInput("q", "en"), "{}")
            assert decision.value is not None
        assert ["response_format" in request.body for request in llm.decisions("grade")] == [True, False, False]


async def test_a_schema_goes_with_the_request():
    async with FakeLLM() as llm, fast_model(llm) as model:
        decision = await DecisionModel(model, 20).decide(
            PlanDecision, PLAN_RULES, DecisionInput("q", "en"), '{"question": "q"}'
        )
        body = llm.decisions("plan")[0].body
    assert body["response_format"]["json_schema"]["name"] == "PlanDecision"
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert decision.usage is not None
    assert decision.usage["total_tokens"] > 0


class Choice(BaseModel):
    kind: Literal["a", "b"]
    note: str = "none"
    many: list[str] = []


@pytest.mark.parametrize(
    "answer",
    [
        '<think>{"kind": "b"} or {"kind"</think>{"kind": "a"}',
        '[{"kind": "a"}]',
        '[{"x": 1}, {"kind": "a"}]',
        '{"kind": "a", "note": null, "many": null}',
        '{"kind": "a", "note": 7, "many": "x"}',
        "{'kind': 'a'}",
        '{"kind": "a" // sure\n}',
    ],
)
def test_what_can_be_read_is(answer: str):
    assert parse(Choice, answer) == Choice(kind="a")


@pytest.mark.parametrize(
    "answer",
    [
        "<think>",
        "{",
        '{"kind": "a", "note": "half a',
        "[" * 30_000,
        '{"a":' * 4_000,
        '{"kind": ["a"]}',
        "a",
        "7",
        "\x00",
    ],
)
def test_what_cannot_be_read_is_nothing(answer: str):
    assert parse(Choice, answer) is None


def test_strings_are_clean():
    assert parse(Choice, '{"kind": "a", "note": "x\\u0000\\ud800"}') == Choice(kind="a", note="x\ufffd")


def test_the_arguments_of_a_tool_call_are_read_too():
    call = {"name": "Choice", "args": {"kind": "b"}, "id": "1"}
    assert read(Choice, AIMessage("", tool_calls=[call])) == Choice(kind="b")
    assert read(Choice, AIMessage("", tool_calls=[{**call, "args": {"query": "x"}}, call])) == Choice(kind="b")


def test_schemas_of_the_steps_need_little():
    assert parse(RewriteDecision, '{"method": "hyde", "text": "t"}') is not None
    assert parse(GradeDecision, '{"relevance": "weak", "answerability": "none", "confidence": 85}') is not None
    assert parse(PlanDecision, '{"complexity": "simple"}') is not None
