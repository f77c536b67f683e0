"""A provider that is down: left alone for a while, and stood in for until a turn has shown text."""

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from backend.infra.llm import breaker, openai
from backend.infra.llm.breaker import Breaker
from backend.infra.llm.extractive import ExtractiveChatModel
from backend.infra.llm.fallback import FallbackModel
from backend.infra.llm.openai import OpenAIModel
from tests.infra.llm.conftest import MakeModel, Outcome, run
from tests.support.fake_llm import FakeLLM, Reply, close_after, reset_after, status, text, tool_call

PAGE = status(200, "<html>please log in</html>")
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "search_knowledge_base", "description": "", "parameters": {"type": "object"}},
}


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "_BACKOFF_SECONDS", 0.001)


class Clock:
    """``time.monotonic`` that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(breaker, "time", made)
    return made


def test_the_circuit_opens_after_failures_in_a_row_and_one_call_tries(clock: Clock):
    circuit = Breaker(failures=3, open_seconds=5)
    for _ in range(2):
        circuit.failed()
    circuit.succeeded()
    for _ in range(3):
        assert circuit.refused_for() == 0
        circuit.failed()
    assert circuit.refused_for() == 5
    clock.now += 5
    assert circuit.refused_for() == 0  # this one tries
    assert circuit.refused_for() == 5  # while the others are refused
    circuit.failed()
    clock.now += 4
    assert circuit.refused_for() == 1
    clock.now += 1
    assert circuit.refused_for() == 0
    circuit.succeeded()
    assert circuit.refused_for() == 0


@pytest.mark.parametrize("reply", [reset_after(0), status(502), status(503), status(504)])
async def test_a_provider_that_is_down_is_left_alone_for_a_while(
    llm: FakeLLM, model: OpenAIModel, clock: Clock, reply: Reply
):
    llm.default = reply
    for _ in range(3):
        error = (await run(model)).error
        assert error is not None
        assert (error.code, error.retryable) == ("provider_unavailable", True)
    assert error.retry_after == 5
    assert len(llm.chats) == breaker.FAILURES
    llm.default = text("back")
    clock.now += 5
    assert [(await run(model)).text for _ in range(2)] == ["back", "back"]


@pytest.mark.parametrize("reply", [status(500), status(429, None, {"retry-after": "0"}), status(401), PAGE])
async def test_a_provider_that_answers_is_not_down(llm: FakeLLM, model: OpenAIModel, reply: Reply):
    llm.default = reply
    for _ in range(4):
        await run(model)
    asked = len(llm.chats)
    await run(model)
    assert len(llm.chats) > asked


def quoting(main: BaseChatModel) -> FallbackModel:
    stand_in = ExtractiveChatModel(answer_rule=lambda question, found: f"quoted {len(found or ())}")
    return FallbackModel(main=main, fallback=stand_in, streaming=True)


async def asked(model: FallbackModel, *after: BaseMessage) -> Outcome:
    return await run(model.bind_tools([TOOL]), [HumanMessage("How long?"), *after])  # type: ignore[arg-type]


def degraded(outcome: Outcome) -> bool:
    assert outcome.message is not None
    return bool(outcome.message.response_metadata.get("degraded"))


DOWN = {
    "unavailable": reset_after(0),
    "timeout": Reply(lambda _: [600.0]),
    "rate_limited": status(429, None, {"retry-after": "86400"}),
    "protocol": PAGE,
}


@pytest.mark.parametrize("kind", DOWN)
async def test_the_stand_in_answers_a_whole_turn(llm: FakeLLM, make_model: MakeModel, kind: str):
    llm.default = DOWN[kind]
    model = quoting(make_model(llm_connect_seconds=1, llm_first_byte_seconds=0.3))
    first = await asked(model)
    assert degraded(first)
    assert first.message is not None
    (call,) = first.message.tool_calls
    assert (call["name"], call["args"]) == ("search_knowledge_base", {"query": "How long?"})

    llm.default = text("the provider is back")
    calls = len(llm.chats)
    spoken = AIMessage("", tool_calls=first.message.tool_calls, response_metadata=first.message.response_metadata)
    result = ToolMessage("[1] a", artifact=[{"text": "a"}], tool_call_id=call["id"])
    second = await asked(model, spoken, result)
    assert (second.text, degraded(second), len(llm.chats)) == ("quoted 1", True, calls)

    third = await asked(model, AIMessage("quoted 1", response_metadata={"degraded": True}), HumanMessage("And now?"))
    assert (third.text, degraded(third)) == ("the provider is back", False)


async def test_the_stand_in_answers_from_what_the_model_has_looked_up(llm: FakeLLM, model: OpenAIModel):
    llm.script(tool_call("search_knowledge_base", {"query": "time"}))
    first = await asked(quoting(model))
    assert first.message is not None
    assert not degraded(first)
    llm.default = reset_after(0)
    call_id = first.message.tool_calls[0]["id"]
    second = await asked(
        quoting(model), first.message, ToolMessage("[1] a", artifact=[{"text": "a"}], tool_call_id=call_id)
    )
    assert (second.text, degraded(second)) == ("quoted 1", True)


async def test_nothing_follows_a_visible_token(llm: FakeLLM, model: OpenAIModel):
    llm.script(close_after(2))
    cut = await asked(quoting(model))
    assert cut.error is not None
    assert (cut.error.code, cut.text) == ("provider_protocol", "one two ")

    llm.default = reset_after(0)
    said = AIMessage("Let me look.", tool_calls=[{"name": "search_knowledge_base", "args": {}, "id": "c"}])
    later = await asked(quoting(model), said, ToolMessage("[1] a", artifact=[{"text": "a"}], tool_call_id="c"))
    assert later.error is not None
    assert (later.error.code, later.text) == ("provider_unavailable", "")


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (status(401), "provider_rejected"),
        (status(400, {"error": {"code": "context_length_exceeded"}}), "context_too_long"),
        (status(400, {"error": {"code": "content_filter"}}), "content_filtered"),
    ],
)
async def test_a_fault_of_the_request_is_no_reason(llm: FakeLLM, model: OpenAIModel, reply: Reply, code: str):
    llm.default = reply
    outcome = await asked(quoting(model))
    assert outcome.error is not None
    assert outcome.error.code == code
