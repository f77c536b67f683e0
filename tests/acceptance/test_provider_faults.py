"""A provider that is down, refuses, breaks off or talks nonsense: a stable code, the text kept, nothing leaked."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import (
    Reply,
    chunks,
    close_after,
    hang_after,
    raw,
    reset_after,
    status,
    text,
    tool_call,
    wire,
)
from tests.support.fake_llm_replies import delta, event
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY = "sk-canary-0123456789abcdef"
HALF = "one two three four five "
PIECES = [event(delta({"content": word})) for word in ("one ", "two ", "three ", "four ", "five ")]
OVERLOADED = {"error": {"message": f"overloaded {KEY}", "type": "server_error", "code": 503}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    env = {"LLM_IDLE_SECONDS": "1", "LLM_FIRST_BYTE_SECONDS": "3", "LLM_TOTAL_SECONDS": "20"}
    async with rack(postgres_url, valkey_url, f"provider_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await shared.reset()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


async def failed(client: Client, seen: Stream, code: str, content: str) -> None:
    """The turn ended by ``code``: told, stored, and the same text everywhere."""
    error = seen.one("error")
    assert error["code"] == code
    assert seen.types[-4:] == ["trace", "citations", "error", "done"]
    assert (seen.one("done")["status"], seen.one("done")["finish_reason"]) == ("failed", None)
    assert seen.text == content
    answer = (await client.messages())[-1]
    assert (answer["status"], answer["content"]) == ("failed", content)
    run = await client.run(seen.run_id)
    assert run["status"] == "failed"
    assert run["error"] == {name: value for name, value in error.items() if name not in {"type", "seq"}}
    for secret in (KEY, "sk-", "httpx", "Traceback", "<html"):
        assert secret not in seen.raw.decode()


async def answers_again(at: Rack, client: Client) -> None:
    """The provider is back: after its pause it is asked again, and turns are answered as before."""
    at.llm.default = text("back")

    async def back() -> bool:
        return (await client.ask(session_id="back")).text == "back"

    await until(back, 60)


CUT = {
    "reset": (reset_after(5), {"provider_unavailable", "provider_protocol"}),
    "closed": (close_after(5), {"provider_protocol"}),
    "silent": (hang_after(5), {"provider_timeout"}),
    "error_chunk": (raw(*PIECES, event(OVERLOADED)), {"provider_unavailable"}),
    "error_event": (
        raw(*PIECES, b"event: error\n", event(OVERLOADED)),
        {"provider_unavailable", "provider_rate_limited"},
    ),
    "page": (raw(*PIECES, b"data: <html>login</html>\n\n"), {"provider_protocol"}),
}


@pytest.mark.parametrize("kind", CUT)
async def test_a14_e06_an_answer_that_breaks_off_keeps_its_text_and_is_not_asked_again(
    at: Rack, alice: Client, kind: str
):
    reply, codes = CUT[kind]
    at.llm.script(reply)
    seen = await alice.ask()
    assert seen.one("error")["code"] in codes
    await failed(alice, seen, seen.one("error")["code"], HALF)
    assert len(at.llm.chats) == 1
    at.llm.script(text("fine"))
    assert (await alice.ask("again")).text == "fine"
    await at.check(seen, turns=2)


REFUSED: dict[str, tuple[Reply, str]] = {
    "401": (status(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}), "provider_rejected"),
    "404": (status(404, {"error": {"message": "no such model", "code": "model_not_found"}}), "provider_rejected"),
    "429": (status(429, None, {"retry-after": "86400"}), "provider_rate_limited"),
    "500": (status(500, "<html><body>Traceback at /srv</body></html>"), "provider_unavailable"),
    "empty": (status(500, None), "provider_unavailable"),
    "html": (status(200, "<html>please log in</html>"), "provider_protocol"),
    "no_http": (wire(b"SSH-2.0-OpenSSH\r\n"), "provider_unavailable"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_e12_a_refusal_is_a_stable_code_and_a_text_of_ours(at: Rack, alice: Client, kind: str):
    reply, code = REFUSED[kind]
    at.llm.default = reply
    seen = await alice.ask()
    await failed(alice, seen, code, "")
    body = await alice.post("/chat", {"message": "hi", "session_id": "other"})
    assert body.status_code == 200
    assert (body.json()["status"], body.json()["error"]["code"], body.json()["response"]) == ("failed", code, "")
    assert KEY not in body.text
    await at.check(seen, turns=2)
    await answers_again(at, alice)


async def test_a_provider_that_is_down(at: Rack, alice: Client):
    at.llm.default = reset_after(0)
    seen = await alice.ask()
    await failed(alice, seen, "provider_unavailable", "")
    assert seen.one("error")["retryable"] is True
    assert seen.of("session_title")
    await at.check(seen, turns=1)
    await answers_again(at, alice)


@pytest.mark.parametrize(
    ("finish", "reason", "flags"),
    [
        ("stop", "stop", []),
        ("length", "length", ["truncated"]),
        ("content_filter", "content_filter", []),
        ("insufficient_system_resource", "other", []),
    ],
)
async def test_e07_the_finish_reason_is_told_and_stored(
    at: Rack, alice: Client, finish: str, reason: str, flags: list[str]
):
    at.llm.script(text("Some text.", finish=finish))
    seen = await alice.ask()
    done, answer = seen.one("done"), (await alice.messages())[-1]
    assert (done["status"], done["finish_reason"], done["flags"]) == ("completed", reason, flags)
    assert (answer["finish_reason"], answer["flags"], answer["content"]) == (reason, flags, "Some text.")
    await at.check(seen, turns=1)


async def test_e07_a_withheld_answer_is_a_defined_message(at: Rack, alice: Client):
    at.llm.script(text("", tokens=[], finish="content_filter"))
    seen = await alice.ask()
    assert seen.text.strip()
    assert seen.one("done")["finish_reason"] == "content_filter"
    assert (await alice.messages())[-1]["content"] == seen.text
    await at.check(seen, turns=1)


async def test_e07_a_tool_call_that_was_cut_is_not_executed(at: Rack, alice: Client):
    call = {
        "index": 0,
        "id": "c",
        "type": "function",
        "function": {"name": "search_knowledge_base", "arguments": '{"qu'},
    }
    at.llm.script(chunks(delta({"tool_calls": [call]}), delta({}, finish="length")))
    seen = await alice.ask()
    assert [event["step"]["label"] for event in seen.of("rag_step")][1:] == []
    assert seen.one("trace")["rag_trace"] is None
    assert seen.one("done")["status"] in {"failed", "completed"}
    assert len(at.llm.chats) == 1
    await at.check(seen, turns=1)


async def test_e01_chunks_without_choices_change_nothing(at: Rack, alice: Client):
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    empty = {"id": "c", "object": "chat.completion.chunk", "model": "fake", "choices": []}
    bodies = [empty, *PIECES[:2], empty, {**empty, "prompt_filter_results": []}, *PIECES[2:], delta({}, finish="stop")]
    at.llm.script(chunks(*bodies, {**empty, "usage": usage}))
    seen = await alice.ask()
    assert seen.text == HALF
    assert seen.one("done")["usage"] == {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
    await at.check(seen, turns=1)


async def test_e02_a_call_in_odd_fragments_is_one_call(at: Rack, alice: Client):
    def part(**function: str | None) -> dict[str, object]:
        return delta({"tool_calls": [{"index": 0, "id": None, "function": function}]})

    opening = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "search_knowledge_base"}}
    at.llm.script(
        chunks(
            delta({"content": "Looking. "}),
            delta({"tool_calls": [opening]}),
            part(name=None, arguments='{"que'),
            part(name="", arguments='ry": "pump'),
            part(arguments=None),
            part(arguments='s"}'),
            delta({}, finish="tool_calls"),
        ),
        text("Done."),
    )
    seen = await alice.ask()
    assert seen.text == "Looking. \n\nDone."
    assert seen.one("trace")["rag_trace"]["query"] == "pumps"
    await at.check(seen, turns=1)


async def test_a_broken_answer_after_a_tool_call_keeps_the_trace(at: Rack, alice: Client):
    at.llm.script(tool_call("search_knowledge_base", {"query": "pumps"}), close_after(5))
    seen = await alice.ask()
    await failed(alice, seen, "provider_protocol", HALF)
    assert seen.one("trace")["rag_trace"]["query"] == "pumps"
    assert (await alice.messages())[-1]["rag_trace"] == seen.one("trace")["rag_trace"]
    await at.check(seen, turns=1)
