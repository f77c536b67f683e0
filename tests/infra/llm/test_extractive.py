import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from backend.infra.llm.extractive import IMAGES, QUESTION, ExtractiveChatModel, Passages

asked: list[tuple[str, Sequence[Mapping[str, Any]] | None]] = []


def rule(question: str, passages: Sequence[Mapping[str, Any]] | None) -> str:
    asked.append((question, passages))
    if passages is None:
        return "Documents only."
    return (
        "  “"
        + "” “".join(str(item["text"]) for item in passages)
        + "” [1]\n没有空格的一段很长的中文文本也要分段输出。\n"
    )


@tool
def search_knowledge_base(query: str) -> str:
    """Searches."""
    return query


@tool
def get_current_weather(location: str) -> str:
    """Weather."""
    return location


class Title(BaseModel):
    """A title."""

    title: str


@pytest.fixture(autouse=True)
def _forget():
    asked.clear()


def model(**fields: Any) -> ExtractiveChatModel:
    return ExtractiveChatModel(answer_rule=rule, streaming=True, **fields)


def found(artifact: object, content: str = "[1] a.pdf: x", name: str = "search_knowledge_base") -> list:
    call = {"name": name, "args": {"query": "Why {x}?"}, "id": "call_2", "type": "tool_call"}
    return [
        SystemMessage("rules"),
        HumanMessage("Why {x}?"),
        AIMessage("", tool_calls=[call]),
        ToolMessage(content, tool_call_id="call_2", artifact=artifact),
    ]


class Tokens(AsyncCallbackHandler):
    """Collects what streams by callback."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.chunks = 0

    async def on_llm_new_token(self, token: str, *, chunk=None, **kwargs: Any) -> None:
        self.tokens.append(token)
        self.chunks += chunk is not None


async def test_a_question_calls_the_knowledge_tool_with_it():
    bound = model().bind_tools([get_current_weather, search_knowledge_base])
    answer = await bound.ainvoke([SystemMessage("rules"), HumanMessage("Why {x} \ud800?")])
    assert answer.content == ""
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [
        ("search_knowledge_base", {"query": "Why {x} \ud800?"})
    ]
    assert answer.tool_calls[0]["id"]
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    assert asked == []


def files_answer(question: str, passages: Passages) -> str | None:
    return f"from the files for {question}" if passages else None


@tool(response_format="content_and_artifact")
def search_uploads(query: str) -> tuple[str, list[dict[str, Any]]]:
    """Searches the files."""
    return "", []


async def test_a_question_with_files_is_looked_up_in_them_first():
    question = HumanMessage("Why?\n\n[Files: a.txt]", additional_kwargs={QUESTION: "Why?"})
    bound = model(uploads_rule=files_answer).bind_tools([search_knowledge_base, search_uploads])
    first = await bound.ainvoke([question])
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("search_uploads", {"query": "Why?"})

    def result(artifact: list[dict[str, Any]]) -> ToolMessage:
        return ToolMessage("", artifact=artifact, tool_call_id=call["id"], name="search_uploads")

    assert (await bound.ainvoke([question, first, result([{"text": "x"}])])).content == "from the files for Why?"
    second = await bound.ainvoke([question, first, result([])])
    assert (second.tool_calls[0]["name"], second.tool_calls[0]["args"]) == ("search_knowledge_base", {"query": "Why?"})


async def test_a_message_that_shows_images_is_no_question():
    shown = HumanMessage([{"type": "image_url", "image_url": {"url": "data:,"}}], additional_kwargs={IMAGES: 1})
    await model().ainvoke([HumanMessage("Why?"), shown])
    assert asked[-1][0] == "Why?"


async def test_a_question_in_blocks_is_read_as_text():
    blocks = [{"type": "text", "text": "Why?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    answer = await model().bind_tools([search_knowledge_base]).ainvoke([HumanMessage(blocks)])
    assert answer.tool_calls[0]["args"] == {"query": "Why?"}


@pytest.mark.parametrize(
    "bound",
    [
        model(),
        model().bind_tools([get_current_weather]),
        model().bind_tools([search_knowledge_base], tool_choice="none"),
    ],
)
async def test_without_the_tool_it_says_what_it_is_for(bound):
    answer = await bound.ainvoke([HumanMessage("hello")])
    assert (answer.content, answer.tool_calls) == ("Documents only.", [])
    assert asked == [("hello", None)]


async def test_answers_from_the_artifact_of_the_tool():
    passages = [{"index": 1, "text": "Because."}]
    answer = await model().bind_tools([search_knowledge_base]).ainvoke(found(passages))
    assert asked == [("Why {x}?", passages)]
    assert answer.content == rule("Why {x}?", passages)
    assert answer.tool_calls == []
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == "extractive"
    assert answer.usage_metadata == {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}


async def test_the_question_is_what_was_looked_up_where_the_user_only_completed_it():
    *before, call, result = found([])
    call.tool_calls[0]["args"] = {"query": "Why {x}? Model B"}
    await model().ainvoke([*before, AIMessage("Which model?"), HumanMessage("B"), call, result])
    assert asked == [("Why {x}? Model B", [])]


@pytest.mark.parametrize("artifact", [[], None])
async def test_an_empty_result_is_passed_on_as_nothing_found(artifact):
    await model().ainvoke(found(artifact, "NO_KNOWLEDGE: nothing"))
    assert asked == [("Why {x}?", [])]


async def test_of_several_results_the_one_with_passages_counts():
    passages = [{"index": 1, "text": "Because."}]
    await model().ainvoke([*found(passages), ToolMessage("Sunny.", tool_call_id="call_3")])
    assert asked == [("Why {x}?", passages)]


async def test_stream_pieces_add_up_to_the_answer():
    messages = found([{"index": 1, "text": "Because of this."}])
    chunks = [chunk async for chunk in model().astream(messages)]
    texts = [str(chunk.content) for chunk in chunks]
    assert "".join(texts) == rule("", [{"index": 1, "text": "Because of this."}])
    assert max(map(len, texts)) <= 20
    assert len([text for text in texts if text]) > 5
    whole = sum(chunks[1:], chunks[0])
    assert isinstance(whole, AIMessageChunk)
    assert whole.response_metadata["finish_reason"] == "stop"
    assert len({chunk.id for chunk in chunks}) == 1


async def test_tokens_reach_callbacks_once_each_with_invoke_and_with_stream():
    messages = found([{"index": 1, "text": "Because of this."}])
    expected = rule("", [{"index": 1, "text": "Because of this."}])
    invoked, streamed = Tokens(), Tokens()
    await model().ainvoke(messages, {"callbacks": [invoked]})
    async for _ in model().astream(messages, {"callbacks": [streamed]}):
        pass
    assert "".join(invoked.tokens) == "".join(streamed.tokens) == expected
    assert invoked.chunks == len(invoked.tokens)


async def test_same_input_same_output():
    messages = found([{"index": 1, "text": "Because."}])
    bound = model().bind_tools([search_knowledge_base])
    first, second = [await bound.ainvoke(messages[:2]) for _ in range(2)]
    assert first.tool_calls == second.tool_calls
    assert (await bound.ainvoke(messages)).content == (await bound.ainvoke(messages)).content


async def test_the_synchronous_call_answers_the_same():
    messages = found([{"index": 1, "text": "Because."}])
    answer = await asyncio.to_thread(model().invoke, messages)
    assert answer.content == rule("", [{"index": 1, "text": "Because."}])


async def test_structured_output_is_the_rule_of_the_schema():
    decided = model(schema_rules={Title: lambda messages: Title(title=str(messages[-1].text).upper())})
    assert await decided.with_structured_output(Title).ainvoke("hello") == Title(title="HELLO")


def test_structured_output_without_a_rule_is_refused_at_once():
    with pytest.raises(NotImplementedError):
        model().with_structured_output(Title)
    with pytest.raises(NotImplementedError):
        model().with_structured_output({"type": "object"})
