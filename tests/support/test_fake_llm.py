"""FakeLLM says what it is told to say, and refuses what a strict provider refuses."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.fake_llm import FakeLLM, close_after, hang_after, reset_after, status, text, tool_call, wire

USER = {"role": "user", "content": "what is on page 17?"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search_knowledge_base",
            "parameters": {"properties": {"query": {"type": "string"}}, "required": ["query"]},
        },
    }
]


@pytest.fixture
async def llm() -> AsyncIterator[FakeLLM]:
    async with FakeLLM() as fake:
        yield fake


@pytest.fixture
async def client(llm: FakeLLM) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=llm.base_url, timeout=30) as client:
        yield client


async def chat(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post("/chat/completions", json={"model": "m", "messages": [USER], **body})


async def test_script_is_played_streamed_and_whole(llm: FakeLLM, client: httpx.AsyncClient):
    llm.script(text("one two", usage={"prompt_tokens": 1}), text("one two"), tool_call("f", {"a": 1}))
    streamed = await chat(client, stream=True, stream_options={"include_usage": True})
    events = [json.loads(line[6:]) for line in streamed.text.split("\n\n") if line.startswith("data: {")]
    contents = [event["choices"][0]["delta"].get("content") for event in events if event["choices"]]
    assert [content for content in contents if content] == ["one ", "two"]
    assert events[-1]["usage"] == {"prompt_tokens": 1}
    assert streamed.text.endswith("data: [DONE]\n\n")
    whole = (await chat(client)).json()
    assert whole["choices"][0]["message"]["content"] == "one two"
    called = (await chat(client)).json()
    assert called["choices"][0]["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert [request.body.get("stream") for request in llm.chats] == [True, None, None]


async def test_scripts_for_a_model_are_its_own(llm: FakeLLM, client: httpx.AsyncClient):
    llm.script(text("fast"), model="small")
    llm.script(text("slow"))
    answers = [(await chat(client, model=model)).json() for model in ("big", "small")]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["slow", "fast"]


async def test_without_a_script_it_searches_and_then_quotes(llm: FakeLLM, client: httpx.AsyncClient):
    first = (await chat(client, tools=TOOLS)).json()["choices"][0]
    call = first["message"]["tool_calls"][0]
    assert first["finish_reason"] == "tool_calls"
    assert json.loads(call["function"]["arguments"]) == {"query": "what is on page 17?"}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "[1] a.pdf, page 17\nA green sky.\n[2] b"}
    answer = (await chat(client, tools=TOOLS, messages=[USER, first["message"], result])).json()
    assert answer["choices"][0]["message"]["content"] == 'According to the documents: "A green sky." [1]'
    assert llm.violations == []


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
BAD: dict[str, dict[str, Any]] = {
    "no_model": {"model": None},
    "stream_options": {"stream_options": {}},
    "no_messages": {"messages": []},
    "dangling_call": {"messages": [USER, CALLING, USER]},
    "dangling_at_end": {"messages": [USER, CALLING]},
    "tool_without_call": {"messages": [USER, {"role": "tool", "tool_call_id": "c", "content": "x"}]},
    "empty_assistant": {"messages": [USER, {"role": "assistant", "content": ""}]},
    "nul": {"messages": [{"role": "user", "content": "a\x00b"}]},
    "surrogate": {"messages": [{"role": "user", "content": "a\ud800b"}]},
    "half_arguments": {
        "messages": [USER, {**CALLING, "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{"}}]}]
    },
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
async def test_malformed_request_is_refused_and_recorded(llm: FakeLLM, body: dict[str, Any]):
    content = json.dumps({"model": "m", "messages": [USER], **body})
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{llm.base_url}/chat/completions", content=content)
    assert answer.status_code == 400
    assert llm.violations


async def test_failures_are_played(llm: FakeLLM, client: httpx.AsyncClient):
    llm.script(status(429, {"error": {}}, {"retry-after": "3"}), wire(b"HTTP/1.1 204 No Content\r\n\r\n"))
    refused = await chat(client)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "3")
    assert (await chat(client)).status_code == 204
    llm.script(close_after(2), reset_after(2), reset_after(0))
    cut = await chat(client, stream=True)
    assert (cut.text.count("data: "), "[DONE]" in cut.text) == (3, False)
    for _ in range(2):
        with pytest.raises(httpx.ReadError):
            await chat(client, stream=True)


async def test_a_client_that_leaves_is_noticed(llm: FakeLLM, client: httpx.AsyncClient):
    llm.script(hang_after(1), text("ok"))
    with pytest.raises(httpx.ReadTimeout):
        await client.post("/chat/completions", json={"model": "m", "messages": [USER], "stream": True}, timeout=0.2)
    await asyncio.wait_for(llm.chats[0].ended.wait(), 10)
    await chat(client)
    assert [request.closed_by_client for request in llm.chats] == [True, False]


async def test_embeddings_are_deterministic_and_near_for_shared_words(client: httpx.AsyncClient):
    body = {"model": "e", "input": ["green sky", "the green sky", "tax law"], "dimensions": 32}
    data = (await client.post("/embeddings", json=body)).json()["data"]
    one, two, three = (item["embedding"] for item in data)
    assert len(one) == 32
    assert sum(a * b for a, b in zip(one, two, strict=True)) > sum(a * b for a, b in zip(one, three, strict=True))
    assert (await client.post("/embeddings", json=body)).json()["data"] == data


async def test_it_runs_as_a_process():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.fake_llm", "--tokens", "3", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
        async with httpx.AsyncClient(base_url=url) as client:
            answer = (await chat(client)).json()
        assert len(answer["choices"][0]["message"]["content"].split()) == 3
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()
