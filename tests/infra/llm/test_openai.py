"""Streaming, odd chunks, finish reasons and cancellation, against a provider that plays a script."""

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from backend.errors import ProviderError
from backend.infra.llm import openai
from backend.infra.llm.openai import OpenAIModel
from tests.infra.llm.conftest import KEY, MakeModel, run
from tests.support.fake_llm import FakeLLM, chunks, hang_after, json_reply, raw, status, text, tool_call
from tests.support.fake_llm_replies import Action, delta, event

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


class Tokens(AsyncCallbackHandler):
    """Collects what callbacks are told."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def on_llm_new_token(self, token: str, **kwargs: Any) -> None:
        self.seen.append(token)


@tool
def search_knowledge_base(query: str) -> str:
    """Searches the documents."""
    return f"[1] guide.pdf (page 17)\nAnswer to {query}\n\n[2] other.pdf (page 2)\nNothing."


async def test_text_is_streamed_and_usage_and_finish_reason_come_with_the_end(llm: FakeLLM, model: OpenAIModel):
    llm.script(text("Seventeen is  the answer.\n", usage=USAGE))
    outcome = await run(model)
    assert outcome.tokens == ["Seventeen ", "is  ", "the ", "answer.\n"]
    assert outcome.message is not None
    assert outcome.message.usage_metadata == {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    assert outcome.message.response_metadata["finish_reason"] == "stop"
    assert outcome.message.response_metadata["model_name"] == "fake"


async def test_calls_one_after_the_other_share_a_connection(llm: FakeLLM, model: OpenAIModel):
    llm.script(text("one"), tool_call("search_knowledge_base", {"query": "q"}), text("three"))
    for _ in range(3):
        await run(model)
    assert llm.accepted == 1


async def test_request_is_a_chat_completion_with_usage_and_a_limit(llm: FakeLLM, make_model: MakeModel):
    llm.script(text("ok"))
    await make_model(answer_max_tokens=77).ainvoke([SystemMessage("Be short."), HumanMessage("q \u2028 é")])
    request = llm.chats[0]
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "fake",
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "q \u2028 é"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 77,
    }


async def test_ainvoke_hands_tokens_to_callbacks_only_when_streaming(llm: FakeLLM, make_model: MakeModel):
    llm.script(text("one two"), text("one two"))
    loud, quiet = Tokens(), Tokens()
    assert (await make_model().ainvoke("q", config={"callbacks": [loud]})).content == "one two"
    message = await make_model(streaming=False).ainvoke("q", config={"callbacks": [quiet]})
    assert isinstance(message, AIMessage)
    assert (message.content, message.response_metadata["finish_reason"]) == ("one two", "stop")
    assert "".join(loud.seen) == "one two"
    assert quiet.seen == []


async def test_without_a_key_no_authorization_is_sent(llm: FakeLLM, make_model: MakeModel, monkeypatch: Any):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-someone-else")
    llm.script(text("ok"))
    await make_model(llm_api_key=None).ainvoke("q")
    assert "authorization" not in llm.chats[0].headers


async def test_nul_and_lone_surrogates_never_reach_the_provider(llm: FakeLLM, model: OpenAIModel):
    llm.script(text("ok"), text("ok"))
    await model.ainvoke("a\x00b")
    await model.ainvoke("a\ud800b")
    assert [request.messages[0]["content"] for request in llm.chats] == ["ab", "a\ufffdb"]


async def test_agent_searches_answers_and_sends_well_formed_requests(llm: FakeLLM, model: OpenAIModel):
    agent: Any = create_agent(model, [search_knowledge_base])
    result = await agent.ainvoke({"messages": [HumanMessage("page seventeen?")]})
    kinds = [type(message) for message in result["messages"]]
    assert kinds == [HumanMessage, AIMessage, ToolMessage, AIMessage]
    assert result["messages"][-1].content == 'According to the documents: "Answer to page seventeen?" [1]'
    assert len(llm.chats) == 2


async def test_typed_error_reaches_every_kind_of_caller(llm: FakeLLM, make_model: MakeModel):
    llm.default = status(401, {"error": {"message": "no", "code": "invalid_api_key"}})
    agent: Any = create_agent(make_model(), [search_knowledge_base])
    calls = [
        make_model().ainvoke("q"),
        make_model(streaming=False).ainvoke("q"),
        agent.ainvoke({"messages": [HumanMessage("q")]}),
    ]
    for call in calls:
        with pytest.raises(ProviderError) as caught:
            await call
        assert caught.value.code == "provider_rejected"
    with pytest.raises(ProviderError):
        async for _ in agent.astream({"messages": [HumanMessage("q")]}, stream_mode="messages"):
            pass
    error = (await run(make_model())).error
    assert error is not None
    assert (error.code, error.retryable) == ("provider_rejected", False)


async def test_structured_output_by_schema_is_parsed(llm: FakeLLM, model: OpenAIModel):
    class Grade(BaseModel):
        """A grade."""

        relevant: bool

    llm.script(text('{"relevant": true}'))
    assert await model.with_structured_output(Grade).ainvoke("q") == Grade(relevant=True)
    assert llm.chats[0].body["response_format"]["json_schema"]["name"] == "Grade"


async def test_plain_json_answer_to_a_streamed_request_is_read(llm: FakeLLM, model: OpenAIModel):
    choice = {"index": 0, "message": {"role": "assistant", "content": "whole"}, "finish_reason": "stop"}
    llm.script(json_reply({"choices": [choice], "usage": USAGE}))
    outcome = await run(model)
    assert outcome.text == "whole"
    assert outcome.error is None
    assert outcome.message is not None
    assert outcome.message.usage_metadata is not None


EMPTY = {"id": "c", "object": "chat.completion.chunk", "choices": []}
NO_CHOICES = {"id": "c", "object": "chat.completion.chunk"}
NO_DELTA = {"choices": [{"index": 0, "finish_reason": None}]}
NULL_DELTA = {"choices": [{"index": 0, "delta": None}]}
NULL_CHOICES = {"choices": None, "error": None}


@pytest.mark.parametrize("odd", [EMPTY, NO_CHOICES, NO_DELTA, NULL_DELTA, NULL_CHOICES])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
async def test_e01_chunks_without_choices_or_delta_keep_text_and_usage(
    llm: FakeLLM, model: OpenAIModel, odd: dict[str, Any], place: str
):
    bodies: list[Any] = [delta({"content": "one "}), delta({"content": "two"}), delta(finish="stop")]
    bodies.insert({"first": 0, "middle": 1, "last": 3}[place], odd)
    llm.script(chunks(*bodies, {"choices": [], "usage": USAGE}))
    outcome = await run(model)
    assert (outcome.text, outcome.error) == ("one two", None)
    assert outcome.message is not None
    assert outcome.message.usage_metadata == {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}


@pytest.mark.parametrize("place", [0, 1, 2, 3])
async def test_e01_usage_is_kept_wherever_it_comes(llm: FakeLLM, model: OpenAIModel, place: int):
    bodies: list[Any] = [delta({"content": "one "}), delta({"content": "two"}), delta(finish="stop")]
    bodies.insert(place, {"choices": [], "usage": USAGE})
    llm.script(chunks(*bodies))
    outcome = await run(model)
    assert outcome.text == "one two"
    assert outcome.message is not None
    assert outcome.message.usage_metadata == {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}


async def test_e01_running_usage_in_each_chunk_is_not_added_up(llm: FakeLLM, model: OpenAIModel):
    first = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    llm.script(chunks(delta({"content": "a"}, usage=first), delta({"content": "b"}, finish="stop", usage=USAGE)))
    outcome = await run(model)
    assert outcome.message is not None
    assert outcome.message.usage_metadata == {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
async def test_e01_text_is_exact_however_the_bytes_are_cut(llm: FakeLLM, model: OpenAIModel, size: int, newline: bytes):
    words = ["Überall ", "你好 ", "🙂", "\u2028 a\\n\n", ": x"]
    body = b": ping\n\n" + b"".join(event(delta({"content": word})) for word in words)
    body += event(delta(finish="stop")) + b"data: [DONE]\n\n"
    body = body.replace(b"\n", newline)
    llm.script(raw(*(body[at : at + size] for at in range(0, len(body), size))))
    outcome = await run(model)
    assert outcome.tokens == words
    assert outcome.error is None


REASONS = ["length", "content_filter", "insufficient_system_resource", "something_new"]


@pytest.mark.parametrize("reason", [*REASONS, "stop"])
@pytest.mark.parametrize("content", ["some text", ""])
async def test_e07_finish_reason_is_on_the_final_message(llm: FakeLLM, model: OpenAIModel, reason: str, content: str):
    llm.default = chunks(delta({"role": "assistant", "content": content}), delta(finish=reason))
    outcome = await run(model)
    assert (outcome.text, outcome.error) == (content, None)
    assert outcome.message is not None
    assert outcome.message.response_metadata["finish_reason"] == reason
    message = await model.ainvoke("q")
    assert message.response_metadata["finish_reason"] == reason
    assert message.content == content


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("arguments", ['{"query": "half', '{"query": "whole"}'])
async def test_e07_tool_call_with_another_reason_is_not_executed(
    llm: FakeLLM, model: OpenAIModel, reason: str, arguments: str
):
    call = {"index": 0, "id": "a", "function": {"name": "search_knowledge_base", "arguments": arguments}}
    llm.script(chunks(delta({"content": "Let me see"}), delta({"tool_calls": [call]}), delta(finish=reason)))
    agent: Any = create_agent(model, [search_knowledge_base])
    result = await agent.ainvoke({"messages": [HumanMessage("q")]})
    assert [type(message) for message in result["messages"]] == [HumanMessage, AIMessage]
    last = result["messages"][-1]
    assert (last.content, last.tool_calls, last.invalid_tool_calls) == ("Let me see", [], [])
    assert last.response_metadata["finish_reason"] == reason
    assert len(llm.chats) == 1


async def test_e07_end_without_reason_but_with_done_is_complete(llm: FakeLLM, model: OpenAIModel):
    llm.script(chunks(delta({"content": "whole"})))
    outcome = await run(model)
    assert (outcome.text, outcome.error) == ("whole", None)
    assert outcome.message is not None
    assert outcome.message.response_metadata.get("finish_reason") is None


@pytest.mark.parametrize("tail", [[], [b"data: [DONE]"], [event({"choices": [], "usage": USAGE})]])
async def test_e07_end_after_the_reason_is_complete_without_done(llm: FakeLLM, model: OpenAIModel, tail: list[bytes]):
    llm.script(raw(event(delta({"content": "whole"})), event(delta(finish="stop")), *tail))
    outcome = await run(model)
    assert (outcome.text, outcome.error) == ("whole", None)


async def test_e07_reset_after_the_reason_keeps_the_whole_answer(llm: FakeLLM, model: OpenAIModel):
    llm.script(raw(event(delta({"content": "whole"})), event(delta(finish="stop")), end=Action.RESET))
    outcome = await run(model)
    assert (outcome.text, outcome.error) == ("whole", None)


async def test_e07_endless_keep_alives_after_the_reason_do_not_hold_the_answer(
    llm: FakeLLM, model: OpenAIModel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(openai, "_AFTER_FINISH_SECONDS", 0.3)
    pings = [piece for _ in range(20_000) for piece in (b": ping\n\n", 0.02)]
    llm.script(raw(event(delta({"content": "whole"})), event(delta(finish="stop")), *pings))
    outcome = await asyncio.wait_for(run(model), 60)
    assert (outcome.text, outcome.error) == ("whole", None)


async def test_e07_end_without_reason_and_done_is_an_error(llm: FakeLLM, model: OpenAIModel):
    llm.script(chunks(delta({"content": "cut"}), done=False))
    outcome = await run(model)
    assert outcome.text == "cut"
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.retryable) == ("provider_protocol", True)
    assert len(llm.chats) == 1


async def test_cancelling_while_waiting_closes_the_connection(llm: FakeLLM, model: OpenAIModel):
    llm.script(hang_after(3))
    started = asyncio.Event()

    async def consume() -> None:
        async for chunk in model.astream("q"):
            if chunk.text:
                started.set()

    await _cancelled(llm, asyncio.create_task(consume()), started)


async def test_cancelling_while_the_consumer_works_closes_the_connection(llm: FakeLLM, model: OpenAIModel):
    llm.script(hang_after(3))
    started = asyncio.Event()

    async def consume() -> None:
        async for _ in model.astream("q"):
            started.set()
            await asyncio.Event().wait()

    await _cancelled(llm, asyncio.create_task(consume()), started)


async def test_cancelling_before_the_answer_closes_the_connection(llm: FakeLLM, model: OpenAIModel):
    llm.script(hang_after(0))
    task = asyncio.create_task(model.ainvoke("q"))
    await llm.wait_for_chats(1)
    started = asyncio.Event()
    started.set()
    await _cancelled(llm, task, started)


async def test_cancelling_an_agent_closes_the_connection(llm: FakeLLM, model: OpenAIModel):
    llm.script(tool_call("search_knowledge_base", {"query": "q"}), hang_after(2))
    agent: Any = create_agent(model, [search_knowledge_base])
    started = asyncio.Event()

    async def consume() -> None:
        async for chunk, _ in agent.astream({"messages": [HumanMessage("q")]}, stream_mode="messages"):
            if isinstance(chunk, AIMessage) and chunk.text:
                started.set()

    await _cancelled(llm, asyncio.create_task(consume()), started)


async def _cancelled(llm: FakeLLM, task: "asyncio.Task[Any]", started: asyncio.Event) -> None:
    await asyncio.wait_for(started.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    request = llm.chats[-1]
    await asyncio.wait_for(request.ended.wait(), 10)
    assert request.closed_by_client
