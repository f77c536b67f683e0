"""What providers send that is not quite the protocol: a real server takes it exactly or refuses it, whatever it is."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.asking import QUESTION, clarify, hitl_of, upload
from tests.acceptance.rack import Rack, rack
from tests.infra.llm.test_openai_tool_calls import BROKEN, EXACT, TWO
from tests.rag.test_structured import READABLE, SHAPES, reply
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import Reply, chunks, raw, status, text, tool_call
from tests.support.fake_llm_rag import decided
from tests.support.fake_llm_replies import delta, event

pytestmark = pytest.mark.asyncio(loop_scope="module")
HALF = "one two three four five "
PIECES = [delta({"content": word}) for word in ("one ", "two ", "three ", "four ", "five ")]
STOP = delta({}, finish="stop")
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
EMPTY: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "model": "fake", "choices": []}
SCHEMA = Path(__file__).parents[2] / "docs" / "events.schema.json"
MODEL = "fake-${JWT_SECRET_KEY}"
TRIES = 3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    env = {"LLM_IDLE_SECONDS": "5", "LLM_TOTAL_SECONDS": "20", "LLM_MODEL": MODEL}
    async with rack(postgres_url, valkey_url, f"quirks_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await shared.reset()
    shared.llm._decisions.clear()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


async def stored_as_told(client: Client, seen: Stream) -> dict[str, Any]:
    """The stored answer, which is what the stream told; gives it."""
    answer, done = (await client.messages())[-1], seen.one("done")
    for name in ("status", "finish_reason", "flags", "usage"):
        assert answer[name] == done[name], name
    assert answer["content"] == seen.text
    return answer


# --- chunks ---

NO_CHOICES = {key: value for key, value in EMPTY.items() if key != "choices"}
NO_DELTA = {**EMPTY, "choices": [{"index": 0, "finish_reason": None}]}
NULL_DELTA = {**EMPTY, "choices": [{"index": 0, "delta": None, "finish_reason": None}]}


@pytest.mark.parametrize("odd", [EMPTY, NO_CHOICES, NO_DELTA, NULL_DELTA], ids=["[]", "none", "no delta", "null delta"])
@pytest.mark.parametrize("place", [0, 2, 5, 6], ids=["first", "middle", "last", "after the reason"])
async def test_e01_a_chunk_without_content_changes_nothing(at: Rack, alice: Client, odd: Any, place: int):
    bodies = [*PIECES, STOP]
    at.llm.script(chunks(*bodies[:place], odd, *bodies[place:], {**EMPTY, "usage": USAGE}))
    seen = await alice.ask()
    answer = await stored_as_told(alice, seen)
    assert (answer["status"], answer["content"]) == ("completed", HALF)
    assert answer["usage"] == {"input_tokens": 7, "output_tokens": 5, "total_tokens": 12}
    await at.check(seen, turns=1)


def named(fragments: list[Any]) -> list[Any]:
    """Fragments of calls of the tools that there are."""
    written = json.dumps(fragments).replace('"search"', '"search_knowledge_base"')
    return json.loads(written.replace('"weather"', '"get_current_weather"'))


def calling(fragments: list[Any]) -> Reply:
    deltas = [delta({"tool_calls": f if isinstance(f, list) else [f]}) for f in named(fragments)]
    return chunks(delta({"role": "assistant", "content": None}), *deltas, delta({}, finish="tool_calls"))


def calls(at: Rack) -> list[tuple[str, Any]]:
    """The calls that the model is shown as its own."""
    made = [call for message in at.llm.chats[-1].messages for call in message.get("tool_calls") or []]
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in made]


@pytest.mark.parametrize("kind", EXACT)
async def test_e02_one_call_in_any_fragments_is_executed_once(at: Rack, alice: Client, kind: str):
    at.llm.script(calling(EXACT[kind]), text("Done."))
    seen = await alice.ask()
    assert seen.text == "Done."
    assert seen.one("trace")["rag_trace"]["query"] == "page 17"
    assert calls(at) == [("search_knowledge_base", {"query": "page 17"})]
    await at.check(seen, turns=1)


@pytest.mark.parametrize("kind", TWO)
async def test_e02_two_calls_at_once_are_two(at: Rack, alice: Client, kind: str):
    at.llm.script(calling(TWO[kind]), text("Done."))
    seen = await alice.ask()
    assert seen.text == "Done."
    first, second = calls(at)
    assert first == ("search_knowledge_base", {"query": "page 17"})
    assert second in [("get_current_weather", {"city": "Rome"}), ("search_knowledge_base", {"query": "b"})]
    await at.check(seen, turns=1)


@pytest.mark.parametrize("kind", BROKEN)
async def test_e02_a_call_that_cannot_be_told_is_refused(at: Rack, alice: Client, kind: str):
    at.llm.script(calling(BROKEN[kind]))
    seen = await alice.ask()
    assert seen.one("done")["status"] == "failed"
    assert seen.one("error")["code"] == "provider_protocol"
    assert seen.one("trace")["rag_trace"] is None
    assert len(at.llm.chats) == 1
    assert (await alice.ask("And now?")).one("done")["status"] == "completed"
    await at.check(seen, turns=2)


async def test_e10_the_turn_after_a_question_back_beside_another_call(at: Rack, alice: Client):
    await upload(alice)
    at.llm.decide("grade", clarify())
    search = {"name": "search_knowledge_base", "arguments": json.dumps({"query": QUESTION})}
    both = [{"index": n, "id": f"c{n}", "type": "function", "function": search} for n in range(2)]
    at.llm.script(chunks(delta({"tool_calls": both}), delta({}, finish="tool_calls")))
    asked = await alice.ask(QUESTION)
    assert asked.one("done")["finish_reason"] == "clarification"
    at.llm.script(text("36 months [1]."), text("Yes."))
    answered = await alice.ask("Pump B", hitl_id=hitl_of(asked)["id"])
    assert answered.one("done")["status"] == "completed"
    assert (await alice.ask("And now?")).text == "Yes."
    assert [message["role"] for message in at.llm.chats[-1].messages[1:]] == ["user", "assistant"] * 2 + ["user"]
    await at.check(answered, turns=3)


# --- errors and ends ---

OVERLOADED = {"error": {"message": "overloaded", "type": "server_error", "code": 503}}
NOTICES: dict[str, Reply] = {
    "chunk": raw(event(OVERLOADED)),
    "event": raw(b"event: error\n", event(OVERLOADED)),
    "line": raw(b"upstream connect error or disconnect\n\n"),
    "data line": raw(b"data: upstream connect error or disconnect\n\n"),
    "page": raw(b"<html><body>busy</body></html>", content_type="text/html"),
}
LATE: dict[str, Reply] = {
    "chunk": raw(*map(event, PIECES), event(OVERLOADED)),
    "event": raw(*map(event, PIECES), b"event: error\n", event(OVERLOADED)),
    "line": raw(*map(event, PIECES), b"upstream connect error or disconnect\n\n"),
    "data line": raw(*map(event, PIECES), b"data: upstream connect error or disconnect\n\n"),
    "page": raw(*map(event, PIECES), b"<html><body>busy</body></html>"),
}


@pytest.mark.parametrize("kind", NOTICES)
async def test_e06_an_error_before_the_first_token_is_told_or_tried_again(at: Rack, alice: Client, kind: str):
    at.llm.script(NOTICES[kind], text("Fine."))
    seen = await alice.ask()
    answer = await stored_as_told(alice, seen)
    assert len(at.llm.chats) <= 2
    if len(at.llm.chats) == 2:
        assert (answer["status"], seen.text, seen.of("error")) == ("completed", "Fine.", [])
    else:
        assert (answer["status"], seen.text) == ("failed", "")
        assert seen.one("error")["code"].startswith("provider_")
    await at.check(seen, turns=1)


@pytest.mark.parametrize("kind", LATE)
async def test_e06_an_error_after_five_tokens_keeps_them_and_asks_nothing_again(at: Rack, alice: Client, kind: str):
    at.llm.script(LATE[kind], text("Never."))
    seen = await alice.ask()
    answer = await stored_as_told(alice, seen)
    assert (answer["status"], answer["content"]) == ("failed", HALF)
    assert seen.one("error")["code"].startswith("provider_")
    assert "busy" not in seen.raw.decode()
    assert len(at.llm.chats) == 1
    await at.check(seen, turns=1)


REASONS: dict[str | None, tuple[str, list[str]]] = {
    "stop": ("stop", []),
    "length": ("length", ["truncated"]),
    "content_filter": ("content_filter", []),
    "insufficient_system_resource": ("other", []),
    "never_heard_of": ("other", []),
    None: ("stop", []),
}


@pytest.mark.parametrize("reason", REASONS)
async def test_e07_each_reason_with_text(at: Rack, alice: Client, reason: str | None):
    at.llm.script(text("Some text.", finish=reason))
    seen = await alice.ask()
    answer = await stored_as_told(alice, seen)
    assert (answer["finish_reason"], answer["flags"]) == REASONS[reason]
    assert (answer["status"], answer["content"]) == ("completed", "Some text.")
    await at.check(seen, turns=1)


@pytest.mark.parametrize("reason", REASONS)
async def test_e07_each_reason_without_text(at: Rack, alice: Client, reason: str | None):
    at.llm.script(text("", tokens=[], finish=reason))
    seen = await alice.ask()
    answer = await stored_as_told(alice, seen)
    if reason == "content_filter":
        assert answer["content"].strip(), "no empty bubble"
    else:
        assert "empty_answer" in answer["flags"]
    assert (answer["status"], answer["finish_reason"]) == ("completed", REASONS[reason][0])
    assert ("truncated" in answer["flags"]) == (reason == "length")
    await at.check(seen, turns=1)


@pytest.mark.parametrize("reason", ["length", "content_filter", "insufficient_system_resource", "never_heard_of", None])
async def test_e07_each_reason_with_an_unfinished_call(at: Rack, alice: Client, reason: str | None):
    half = {
        "index": 0,
        "id": "c",
        "type": "function",
        "function": {"name": "search_knowledge_base", "arguments": '{"q'},
    }
    at.llm.script(chunks(delta({"tool_calls": [half]}), delta({}, finish=reason)))
    seen = await alice.ask()
    answer = await stored_as_told(alice, seen)
    assert answer["rag_trace"] is None, "not executed"
    assert len(at.llm.chats) == 1
    if answer["status"] == "completed":
        assert answer["finish_reason"] == REASONS[reason][0]
        assert answer["content"].strip() or "empty_answer" in answer["flags"]
    else:
        assert (answer["status"], seen.one("error")["code"]) == ("failed", "provider_protocol")
    assert (await alice.ask("And now?")).one("done")["status"] == "completed"
    await at.check(seen, turns=2)


# --- being told to wait ---


@pytest.mark.parametrize("headers", [{"retry-after": "2"}, {"retry-after-ms": "300"}, {}], ids=["2", "ms", "none"])
async def test_e09_a_wait_that_fits_is_kept_by_one_layer(at: Rack, alice: Client, headers: dict[str, str]):
    at.llm.script(status(429, None, headers), text("Fine."))
    seen = await alice.ask()
    assert (seen.text, seen.of("error")) == ("Fine.", [])
    first, second = at.llm.chats
    wanted = 2.0 if "retry-after" in headers else 0.3 if headers else 0.0
    assert second.time - first.time >= wanted - 0.01
    at.llm.default = status(429, {"error": {"message": "slow"}}, {"retry-after": "0"})
    refused = await alice.ask("again", "other")
    assert refused.one("error")["code"] == "provider_rate_limited"
    assert len(at.llm.chats) - 2 <= TRIES
    await at.check(seen, refused, turns=2)


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_e09_a_wait_beyond_the_deadline_fails_at_once(at: Rack, alice: Client, form: str):
    tomorrow = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
    at.llm.default = status(429, None, {"retry-after": "86400" if form == "seconds" else tomorrow})
    seen = await alice.ask()
    error = seen.one("error")
    assert (error["code"], error["retryable"]) == ("provider_rate_limited", True)
    assert error["retry_after"] == pytest.approx(86400, abs=120)
    assert seen.one("done")["status"] == "failed"
    assert len(at.llm.chats) == 1
    await at.check(seen, turns=1)


# --- structured output ---


@pytest.mark.parametrize("step", ["plan", "grade", "rewrite"])
@pytest.mark.parametrize("shape", SHAPES)
async def test_e11_no_shape_of_a_decision_fails_a_turn(at: Rack, alice: Client, shape: str, step: Any):
    await upload(alice)
    if step == "rewrite":
        weak = {"relevance": "weak", "answerability": "partial", "ambiguity": "none", "confidence": 0.3}
        at.llm.decide("grade", decided(**weak, route="rewrite", reason="vague"))
    at.llm.decide(step, *[reply(shape, step)] * 2)
    question = "How do the warranty of pump A and the warranty of pump B differ?"
    at.llm.script(tool_call("search_knowledge_base", {"query": question}), text("They differ."))
    seen = await alice.ask(question)
    assert (seen.one("done")["status"], seen.of("error")) == ("completed", [])
    assert len(at.llm.decisions(step)) >= (1 if shape in READABLE else 2), "one try to repair"
    trace = seen.one("trace")["rag_trace"]
    if shape not in READABLE:
        assert "unreadable" in f"{trace.get('complexity_reason')} {trace.get('evidence_reason')}"
    assert trace["retrieved_chunks"]
    await at.check(seen, turns=1)


# --- what is no business of a client ---


async def test_j18_a_model_server_cannot_send_events_of_its_own(at: Rack, alice: Client):
    at.llm.script(
        raw(
            b'event: execute\ndata: {"code": "fetch(1)"}\n\n',
            b"event: done\ndata: {}\n\n",
            b"id: 99\nretry: 1\n\n",
            event({**PIECES[0], "__proto__": {"admin": True}, "type": "done", "execute": "fetch(1)"}),
            event(delta({"content": "two ", "__proto__": {"admin": True}, "html": "<script>1</script>"})),
            b"event: execute\n" + event(delta({"content": 'data: {"type":"done"}\n\n'})),
            event(delta({"content": "${JWT_SECRET_KEY} $JWT_SECRET_KEY %(JWT_SECRET_KEY)s {JWT_SECRET_KEY}"})),
            event(STOP),
            b"data: [DONE]\n\n",
        )
    )
    seen = await alice.ask()
    validator = jsonschema_rs.validator_for(json.loads(SCHEMA.read_text(encoding="utf-8")))
    for block in seen.blocks:
        assert block.startswith("data: ")
        assert "\n" not in block
    for item in seen.events:
        validator.validate(item)
    assert seen.types.count("done") == 1
    assert "__proto__" not in seen.raw.decode()
    assert "execute" not in seen.raw.decode()
    assert seen.text.startswith('one two data: {"type":"done"}\n\n${JWT_SECRET_KEY} $JWT_SECRET_KEY')
    assert (await alice.replay(seen.run_id)).events == seen.events
    await at.check(seen, turns=1)


async def test_j18_nothing_that_a_user_or_a_setting_says_is_expanded(at: Rack, alice: Client):
    said = "What is ${JWT_SECRET_KEY} and $LLM_API_KEY?"
    content = b"The secret is ${JWT_SECRET_KEY} and $LLM_API_KEY."
    assert (
        await alice.http.post("/documents/upload", files={"file": ("${JWT_SECRET_KEY}.txt", content)})
    ).status_code == 200
    at.llm.script(tool_call("search_knowledge_base", {"query": said}), text("It is ${JWT_SECRET_KEY} [1]."))
    seen = await alice.ask(said)
    assert seen.text == "It is ${JWT_SECRET_KEY} [1]."
    assert seen.one("session_title")["title"] == said
    assert seen.one("citations")["citations"][0]["filename"] == "${JWT_SECRET_KEY}.txt"
    assert (await alice.http.patch("/sessions/s", json={"title": "${LLM_API_KEY}"})).json()["title"] == "${LLM_API_KEY}"
    assert {request.body["model"] for request in at.llm.chats} == {MODEL}
    secrets = [at.server.env[name] for name in ("JWT_SECRET_KEY", "LLM_API_KEY")]
    everything = [seen.raw.decode(), str(await alice.messages()), *(str(request.body) for request in at.llm.requests)]
    for shown in everything:
        assert not any(secret in shown for secret in secrets)
    await at.check(seen, turns=1)
