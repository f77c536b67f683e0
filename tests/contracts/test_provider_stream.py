"""Our provider stream beside LangChain's stock client: the same answer from every stream that follows the protocol. One
that breaks it has an answer or a typed error.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from backend.errors import ProviderError
from backend.infra.config import ModelConfig
from backend.infra.llm.openai import openai_model
from tests.infra.llm.test_openai_tool_calls import ARGS, part
from tests.support.fake_llm import FakeLLM, raw
from tests.support.fake_llm_replies import delta, event

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
COUNTED = {"choices": [], "usage": USAGE}
ONE, TWO, STOP = delta({"content": "one "}), delta({"content": "two"}), delta(finish="stop")
ROLE = delta({"role": "assistant", "content": ""})
CALLED = delta(finish="tool_calls")


def calls(*fragments: Any) -> list[dict[str, Any]]:
    return [delta({"tool_calls": one if isinstance(one, list) else [one]}) for one in fragments]


ALIKE: dict[str, list[Any]] = {
    "text": [ROLE, ONE, TWO, STOP],
    "e01_usage_last": [ROLE, ONE, TWO, STOP, COUNTED],
    "e01_filter_first": [{"choices": [], "prompt_filter_results": []}, ONE, TWO, STOP, COUNTED],
    "e01_empty_delta": [ONE, delta({}), TWO, STOP],
    "finish_with_text": [ONE, delta({"content": "two"}, finish="stop")],
    "unicode": [delta({"content": "Überall 你好 🙂 \u2028\n\n"}), delta({"content": ": x"}), STOP],
    "e07_length": [ONE, delta(finish="length")],
    "e07_content_filter": [ONE, delta(finish="content_filter")],
    "e07_unknown": [ONE, delta(finish="insufficient_system_resource")],
    "e02_a_standard": [*calls(part(0, "x", "search", ""), part(args='{"query": '), part(args='"page 17"}')), CALLED],
    "e02_b_at_once": [*calls(part(0, "x", "search", ARGS)), CALLED],
    "e02_c_null_name": [*calls(part(0, "x", "search", '{"query"'), part(name=None, args=': "page 17"}')), CALLED],
    "e02_d_null_arguments": [*calls(part(0, "x", "search", None), part(args=ARGS), part(args=None)), CALLED],
    "e02_g_two_interleaved": [
        *calls(
            [part(0, "x", "search", '{"query": '), part(1, "y", "weather", '{"ci')],
            part(1, args='ty": "Rome"}'),
            part(0, args='"page 17"}'),
        ),
        CALLED,
    ],
    "e02_h_text_first": [ONE, *calls(part(0, "x", "search", ARGS)), CALLED],
}
"""Streams as the protocol has them."""

BETTER: dict[str, tuple[list[Any], str | tuple[str, bool]]] = {
    "e01_null_delta": ([ONE, {"choices": [{"index": 0, "delta": None}]}, TWO, STOP], "one two"),
    "e01_no_choices": ([ONE, {"id": "x"}, TWO, STOP], "one two"),
    "e06_error_chunk": ([ONE, {"error": {"message": "overloaded", "code": 529}}], ("provider_unavailable", True)),
    "e06_error_line": ([ONE, b"upstream failed\n\n"], ("provider_protocol", True)),
}
"""Streams that break it, and what ours makes of them."""


def body(items: list[Any], newline: bytes = b"\n", done: bool = True) -> bytes:
    """The stream of ``items``, to its ``[DONE]``."""
    events = [item if isinstance(item, bytes) else event(item) for item in items]
    return b"".join([*events, b"data: [DONE]\n\n" if done else b""]).replace(b"\n", newline)


@pytest.fixture
async def llm() -> AsyncIterator[FakeLLM]:
    async with FakeLLM() as fake:
        yield fake


def stock(llm: FakeLLM) -> BaseChatModel:
    return ChatOpenAI(
        model="fake", base_url=llm.base_url, api_key=SecretStr("none"), stream_usage=True, max_retries=0, timeout=30
    )


async def whole(model: BaseChatModel) -> AIMessageChunk:
    """The answer of one streamed call. Raises what the client raises."""
    chunks = [chunk async for chunk in model.astream("hi")]
    found = chunks[0]
    for chunk in chunks[1:]:
        found = found + chunk
    assert isinstance(found, AIMessageChunk)
    return found


def told(message: AIMessageChunk) -> dict[str, Any]:
    """What an agent reads of an answer."""
    usage = message.usage_metadata
    return {
        "text": str(message.text),
        "calls": [(call["id"], call["name"], call["args"]) for call in message.tool_calls],
        "invalid": message.invalid_tool_calls,
        "reason": message.response_metadata.get("finish_reason"),
        "usage": usage and (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]),
    }


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("items", ALIKE.values(), ids=ALIKE.keys())
async def test_the_answer_is_that_of_the_stock_client(llm: FakeLLM, items: list[Any], newline: bytes, size: int):
    sent = body(items, newline)
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    llm.script(raw(*pieces), raw(*pieces))
    ours = openai_model(ModelConfig(llm_base_url=llm.base_url, llm_model="fake"), model="fake")
    try:
        assert told(await whole(ours)) == told(await whole(stock(llm)))
    finally:
        await ours.aclose()


@pytest.mark.parametrize(("items", "wanted"), BETTER.values(), ids=BETTER.keys())
async def test_a_broken_stream_has_an_answer_or_a_typed_error(
    llm: FakeLLM, items: list[Any], wanted: str | tuple[str, bool]
):
    llm.script(raw(body(items)))
    ours = openai_model(ModelConfig(llm_base_url=llm.base_url, llm_model="fake"), model="fake")
    found: str | tuple[str, bool]
    try:
        found = str((await whole(ours)).text)
    except ProviderError as error:
        found = (error.code, error.retryable)
    finally:
        await ours.aclose()
    assert found == wanted
