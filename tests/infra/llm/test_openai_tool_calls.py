"""Tool calls in every shape providers stream them: exact, or refused, never half-built."""

import json
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

from backend.errors import ProviderError
from backend.infra.llm.openai import OpenAIModel
from tests.infra.llm.conftest import run
from tests.support.fake_llm import FakeLLM, chunks, json_reply, text, tool_call
from tests.support.fake_llm_replies import Action, delta

ARGS = '{"query": "page 17"}'
WANTED = [("search", {"query": "page 17"})]


def part(index: int | None = 0, id: Any = None, name: Any = ..., args: Any = ...) -> dict[str, Any]:
    """One fragment; ``...`` leaves the key out, as ``index=None`` does."""
    function = {key: value for key, value in (("name", name), ("arguments", args)) if value is not ...}
    fields: dict[str, Any] = {"type": "function", "function": function}
    if index is not None:
        fields["index"] = index
    return fields | ({"id": id} if id is not None else {})


def script(llm: FakeLLM, *fragments: Any, finish: str | None = "tool_calls", done: bool = True) -> None:
    """Each fragment, or list of fragments, is a chunk of its own."""
    deltas = [delta({"tool_calls": f if isinstance(f, list) else [f]}) for f in fragments]
    llm.script(chunks(delta({"role": "assistant", "content": None}), *deltas, delta(finish=finish), done=done))


EXACT: dict[str, list[Any]] = {
    "a_standard": [part(0, "x", "search", ""), part(args='{"query": '), part(args='"page 17"}')],
    "b_all_at_once": [part(0, "x", "search", ARGS)],
    "c_null_name": [part(0, "x", "search", '{"query"'), part(name=None, args=': "page 17"}')],
    "c_empty_name": [part(0, "x", "search", '{"query"'), part(name="", args=': "page 17"}')],
    "c_repeated_name": [part(0, "x", "search", '{"query"'), part(name="search", args=': "page 17"}')],
    "d_null_arguments": [part(0, "x", "search", None), part(args=ARGS), part(args=None)],
    "d_object_arguments": [part(0, "x", "search", json.loads(ARGS))],
    "e_no_index": [part(None, "x", "search", '{"query"'), part(None, args=': "page 17"}')],
    "e_no_index_same_id": [part(None, "x", "search", '{"query"'), part(None, "x", args=': "page 17"}')],
    "f_new_id_each": [part(0, "x", "search", '{"query"'), part(0, "y", args=': "page 17"}')],
    "f_new_id_and_index_each": [part(0, "x", "search", '{"query"'), part(1, "y", "", ': "page 17"}')],
    "f_new_id_no_index": [part(None, "x", "search", '{"query"'), part(None, "y", None, ': "page 17"}')],
    "i_repeated_id": [part(0, "x", "search", '{"query"'), part(0, "x", args=': "page 17"}')],
    "i_empty_id": [part(0, "", "search", '{"query"'), part(0, "", args=': "page 17"}')],
}


@pytest.mark.parametrize("fragments", EXACT.values(), ids=EXACT.keys())
async def test_e02_one_call_is_exact(llm: FakeLLM, model: OpenAIModel, fragments: list[Any]):
    script(llm, *fragments)
    outcome = await run(model)
    assert outcome.error is None
    assert outcome.message is not None
    assert [(call["name"], call["args"]) for call in outcome.message.tool_calls] == WANTED
    assert outcome.message.tool_calls[0]["id"]
    assert outcome.message.invalid_tool_calls == []


TWO: dict[str, list[Any]] = {
    "g_interleaved": [
        [part(0, "x", "search", '{"query": '), part(1, "y", "weather", '{"ci')],
        part(1, args='ty": "Rome"}'),
        part(0, args='"page 17"}'),
    ],
    "all_at_index_0": [part(0, "x", "search", ARGS), part(0, "y", "weather", '{"city": "Rome"}')],
    "no_index": [part(None, "x", "search", ARGS), part(None, "y", "weather", '{"city": "Rome"}')],
    "i_same_id_twice": [part(0, "x", "search", ARGS), part(1, "x", "weather", '{"city": "Rome"}')],
    "i_same_id_no_index": [part(None, "x", "search", ARGS), part(None, "x", "weather", '{"city": "Rome"}')],
    "i_empty_ids": [part(0, "", "search", ARGS), part(1, "", "weather", '{"city": "Rome"}')],
    "same_tool_index_0": [part(0, "x", "search", ARGS), part(0, "y", "search", '{"query": "b"}')],
}


@pytest.mark.parametrize("fragments", TWO.values(), ids=TWO.keys())
async def test_e02_parallel_calls_are_exact_and_have_different_ids(
    llm: FakeLLM, model: OpenAIModel, fragments: list[Any]
):
    script(llm, *fragments)
    outcome = await run(model)
    assert outcome.message is not None
    first, second = outcome.message.tool_calls
    assert (first["name"], first["args"]) == WANTED[0]
    assert (second["name"], second["args"]) in [("weather", {"city": "Rome"}), ("search", {"query": "b"})]
    assert first["id"] and second["id"] and first["id"] != second["id"]


async def test_e02_h_text_before_the_call_is_kept(llm: FakeLLM, model: OpenAIModel):
    llm.script(tool_call("search", {"query": "page 17"}, content="Let me look. "))
    outcome = await run(model)
    assert outcome.text == "Let me look. "
    assert outcome.message is not None
    assert [(call["name"], call["args"]) for call in outcome.message.tool_calls] == WANTED


async def test_e02_call_that_ends_with_stop_or_only_done_is_taken(llm: FakeLLM, model: OpenAIModel):
    for finish in ("stop", None):
        script(llm, part(0, "x", "search", ARGS), finish=finish)
        message = (await run(model)).message
        assert message is not None
        assert [(call["name"], call["args"]) for call in message.tool_calls] == WANTED


async def test_e02_call_without_arguments_gets_none(llm: FakeLLM, model: OpenAIModel):
    script(llm, part(0, "x", "now", ""), part(1, "y", "then", None), part(2, "z", "later", "null"))
    message = (await run(model)).message
    assert message is not None
    assert [call["args"] for call in message.tool_calls] == [{}, {}, {}]


async def test_e02_plain_json_calls_are_read(llm: FakeLLM, model: OpenAIModel):
    calls = [{"id": "x", "type": "function", "function": {"name": "search", "arguments": ARGS}}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    llm.script(json_reply({"choices": [{"message": message, "finish_reason": "tool_calls"}]}))
    outcome = await run(model)
    assert outcome.message is not None
    assert [(call["name"], call["args"]) for call in outcome.message.tool_calls] == WANTED


async def test_e02_arguments_are_cleaned(llm: FakeLLM, model: OpenAIModel):
    script(llm, part(0, "x", "search", '{"query": "a\\u0000b\\ud800c", "n": 123456789012345678901234567890}'))
    message = (await run(model)).message
    assert message is not None
    assert message.tool_calls[0]["args"] == {"query": "ab\ufffdc", "n": 123456789012345678901234567890}


BROKEN: dict[str, list[Any]] = {
    "half_json": [part(0, "x", "search", '{"query": "pag')],
    "no_object": [part(0, "x", "search", '["page 17"]')],
    "double": [part(0, "x", "search", ARGS + ARGS)],
    "too_deep": [part(0, "x", "search", '{"query": ' + "[" * 3000 + "]" * 3000 + "}")],
    "not_a_number": [part(0, "x", "search", '{"query": NaN}')],
    "no_name": [part(0, "x", None, ARGS)],
    "name_changes": [part(0, "x", "search", '{"query"'), part(0, "y", "weather", ': "page 17"}')],
    "named_pieces_with_new_ids": [part(0, "x", "search", '{"query"'), part(1, "y", "search", ': "a"}')],
    "unclear_owner": [
        part(0, "x", "search", '{"query"'),
        part(1, "y", "weather", '{"city"'),
        part(2, "z", "", ': "Rome"}'),
    ],
    "unclear_owner_that_would_parse": [
        part(0, "x", "search", '{"query": "a"'),
        part(1, "y", "search", ""),
        part(2, "z", "", "}"),
    ],
    "no_function": [{"index": 0, "id": "x", "function": "search"}],
    "no_dict": ["search"],
    "none_at_all": [],
}


@pytest.mark.parametrize("fragments", BROKEN.values(), ids=BROKEN.keys())
async def test_e02_unclear_call_is_refused_and_never_executed(llm: FakeLLM, model: OpenAIModel, fragments: list[Any]):
    script(llm, *fragments)
    assert await _executed(model) == []
    assert len(llm.chats) == 1


async def test_e02_call_cut_off_by_the_connection_is_never_executed(llm: FakeLLM, model: OpenAIModel):
    for end in (None, Action.RESET):
        llm.script(chunks(delta({"tool_calls": [part(0, "x", "search", ARGS)]}), done=False, end=end))
        assert await _executed(model, codes=("provider_protocol", "provider_unavailable")) == []


async def test_e02_repaired_ids_make_the_next_request_well_formed(llm: FakeLLM, model: OpenAIModel):
    script(llm, part(0, "x", "search", ARGS), part(1, "x", "search", '{"query": "b"}'))
    llm.script(text("done"))
    assert await _executed(model, codes=()) == ["page 17", "b"]
    assert len(llm.chats) == 2


async def _executed(model: OpenAIModel, codes: tuple[str, ...] = ("provider_protocol",)) -> list[str]:
    """The queries that an agent's tool was called with; ``codes``: how the run must fail, empty if it must not."""
    queries: list[str] = []

    @tool
    def search(query: str = "default") -> str:
        """Searches."""
        queries.append(query)
        return "nothing"

    agent: Any = create_agent(model, [search])
    call = agent.ainvoke({"messages": [HumanMessage("q")]})
    if codes:
        with pytest.raises(ProviderError) as caught:
            await call
        assert caught.value.code in codes
    else:
        await call
    return sorted(queries, key=len, reverse=True)
