"""One turn over real HTTP, watched, left, repeated and stopped: replayed from memory and from the table."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.metrics import metric
from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import Reply, hang_after, raw, text, tool_call, wait
from tests.support.fake_llm_replies import delta, event
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORDS = "one two three four five six seven eight nine ten "
HEAD = ["run_started", "rag_step", "session_title"]
TAIL = ["trace", "citations", "done"]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["true", "false"], ids=["memory", "table"])
async def shared(
    request: pytest.FixtureRequest, postgres_url: URL, valkey_url: str, worker_id: str
) -> AsyncIterator[Rack]:
    env = {"EVENT_MEMORY_LOG": request.param}
    async with rack(postgres_url, valkey_url, f"turn_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await shared.reset()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


# --- frames ---

FORGED = [
    "\n",
    "\r",
    "\r\n\r\n",
    "data: x\n\n",
    ": c",
    "event: done\ndata: {}\n\n",
    "\u2028",
    "\x85",
    "data: [DONE]\n\n",
]


async def test_a04_nothing_in_a_text_can_make_an_event(at: Rack, alice: Client):
    at.llm.script(text("", tokens=FORGED))
    seen = await alice.ask(message="\u2028data: [DONE]\n\n")
    assert b"\r" not in seen.raw
    assert seen.raw.endswith(b"\n\n")
    for block in seen.blocks:
        assert block.startswith("data: ")
        assert len(block.splitlines()) == 1
    assert seen.blocks[-1] == "data: [DONE]"
    assert seen.types == [*HEAD, *["content"] * seen.types.count("content"), *TAIL]
    assert seen.text == "".join(FORGED)
    assert [event["seq"] for event in seen.events] == list(range(1, len(seen.events) + 1))
    replayed = await alice.replay(seen.run_id)
    assert replayed.events == seen.events
    assert [block.split("\n")[0] for block in replayed.blocks[:-1]] == [f"id: {event['seq']}" for event in seen.events]
    assert [block.split("\n")[1] for block in replayed.blocks[:-1]] == seen.blocks[:-1]
    question, answer = await alice.messages()
    assert (question["content"], answer["content"]) == ("\u2028data: [DONE]\n\n", seen.text)
    await at.check(seen, replayed, turns=1)


async def test_headers_of_both_streams(at: Rack, alice: Client):
    seen = await alice.ask()
    for stream in (seen, await alice.replay(seen.run_id)):
        headers = stream.response.headers
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["cache-control"] == "no-cache, no-transform"
        assert headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in headers
        assert headers["content-location"] == f"/chat/runs/{seen.run_id}/stream"
        assert headers["x-run-id"] == seen.one("run_started")["run_id"]


async def test_a_quiet_stream_is_kept_alive(at: Rack, alice: Client):
    at.llm.script(hang_after(1))
    async with alice.stream() as stream:
        await stream.until(lambda got: b": ping\n\n" in got.raw)
        await alice.stop(stream.run_id)
        await stream.end()
    assert [block for block in stream.blocks if not block.startswith("data: ")] == [": ping"]
    await at.check(stream, turns=1)


async def test_the_larger_of_both_cursors_counts(at: Rack, alice: Client):
    seen = await alice.ask()
    for after, header in ((2, "4"), (4, "2")):
        async with alice.follow(seen.run_id, after, headers={"Last-Event-ID": header}) as stream:
            await stream.end()
        assert stream.events == seen.events[4:]
    end = await alice.replay(seen.run_id, seen.last_seq)
    assert (end.raw, end.done) == (b"data: [DONE]\n\n", True)


async def test_done_names_what_is_stored(at: Rack, alice: Client):
    at.llm.script(tool_call("search_knowledge_base", {"query": "x"}, content="Let me look."), text("Nothing there."))
    seen = await alice.ask()
    done, (question, answer) = seen.one("done"), await alice.messages()
    assert seen.text == answer["content"] == "Let me look.\n\nNothing there."
    assert (done["message_id"], done["status"]) == (answer["id"], answer["status"]) == (answer["id"], "completed")
    assert done["usage"] == answer["usage"]
    assert done["usage"]["total_tokens"] > 0
    assert done["finish_reason"] == answer["finish_reason"] == "stop"
    assert seen.one("trace")["rag_trace"] == answer["rag_trace"]
    assert answer["rag_trace"]["tool_used"] is True
    assert seen.one("run_started")["user_message_id"] == question["id"]
    assert (await alice.run(seen.run_id))["last_seq"] == seen.last_seq
    await at.check(seen, turns=1)


# --- leaving ---


async def whole(client: Client, run_id: str) -> dict[str, str]:
    """The stored answer once the run ended."""
    await client.ended(run_id)
    return (await client.messages())[-1]


@pytest.mark.parametrize("leave_at", ["", "one", "five", "ten"])
async def test_b01_a_client_that_leaves_loses_nothing(at: Rack, alice: Client, leave_at: str):
    at.llm.script(text(WORDS, delay=0.05))
    async with alice.stream() as stream:
        await stream.until_text(leave_at)
    question = (await alice.messages())[0]
    assert question["content"] == "How long?"
    answer = await whole(alice, stream.run_id)
    assert (answer["status"], answer["content"]) == ("completed", WORDS)
    await at.check(stream, turns=1)


async def test_b01_leaving_between_the_last_token_and_done(at: Rack, alice: Client):
    ending = [event(delta({}, finish="stop")), b"data: [DONE]\n\n"]
    at.llm.script(raw(event(delta({"content": WORDS})), 1.0, *ending))
    async with alice.stream() as stream:
        await stream.until_text("ten ")
        assert "done" not in stream.types
    answer = await whole(alice, stream.run_id)
    assert (answer["status"], answer["content"]) == ("completed", WORDS)
    await at.check(stream, turns=1)


async def test_b02_leaving_before_the_first_token_without_any_subscriber(at: Rack, alice: Client):
    """The model goes on only when the server knows that nobody reads: what depended on a reader would be undone."""
    go_on = asyncio.Event()
    search = tool_call("search_knowledge_base", {"query": "x"})
    at.llm.script(held(go_on, search), text(WORDS))
    async with alice.stream() as stream:
        await stream.until_type("rag_step")
    await until(lambda: nobody_reads(at))
    assert (await alice.run(stream.run_id))["status"] == "running"
    go_on.set()
    answer = await whole(alice, stream.run_id)
    assert (answer["status"], answer["content"]) == ("completed", WORDS)
    assert answer["rag_trace"]["tool_used"] is True
    assert stream.text == ""
    await at.check(stream, turns=1)


async def test_b02_leaving_between_two_tokens_without_any_subscriber(at: Rack, alice: Client):
    go_on = asyncio.Event()
    ending = [event(delta({}, finish="stop")), b"data: [DONE]\n\n"]
    at.llm.script(raw(event(delta({"content": "one "})), go_on, event(delta({"content": "two"})), *ending))
    async with alice.stream() as stream:
        await stream.until_text("one")
    await until(lambda: nobody_reads(at))
    go_on.set()
    answer = await whole(alice, stream.run_id)
    assert (answer["status"], answer["content"]) == ("completed", "one two")
    await at.check(stream, turns=1)


def held(go_on: asyncio.Event, reply: Reply) -> Reply:
    """``reply``, as soon as ``go_on`` is set."""
    return Reply(lambda request: [go_on, *reply.steps(request)])


async def nobody_reads(at: Rack) -> bool:
    return await metric(at.server.url, "stream_subscribers") == 0


async def test_b12_the_session_is_there_from_run_started_on(at: Rack, alice: Client):
    at.llm.script(wait(1.0, text(WORDS)))
    async with alice.stream() as stream:
        await stream.until_type("run_started")
        question, answer = await alice.messages()
        listed = (await alice.get("/sessions")).json()["sessions"]
        await stream.end()
    started = stream.one("run_started")
    assert (question["id"], question["content"], question["status"]) == (
        started["user_message_id"],
        "How long?",
        "completed",
    )
    assert (answer["id"], answer["content"], answer["status"]) == (started["message_id"], "", "pending")
    assert [(item["session_id"], item["message_count"], item["title"]) for item in listed] == [("s", 2, "How long?")]
    await at.check(stream, turns=1)


async def test_c08_every_subscriber_of_every_run_reads_from_its_first_event(at: Rack, alice: Client):
    for number in range(8):
        at.llm.script(text(f"answer {number}", delay=0.01))
        async with alice.stream(f"question {number}") as stream, alice.follow(stream.run_id) as second:
            await asyncio.gather(stream.end(), second.end())
        assert stream.events == second.events
        assert stream.events[0]["seq"] == 1
        assert stream.text == f"answer {number}"
    await at.check(turns=8)


async def test_a_stream_that_postgres_cuts_ends_in_order_and_goes_on_with_its_cursor(at: Rack, alice: Client):
    at.llm.script(text(WORDS, delay=0.1))
    async with alice.stream() as stream:
        await stream.until_text("two")
        at.postgres.refuse()
        await asyncio.sleep(0.7)
        await at.postgres.restore()
        await stream.end()
    assert (await alice.ended(stream.run_id))["status"] == "completed"
    rest = await alice.replay(stream.run_id, stream.last_seq)
    assert stream.text + rest.text == WORDS
    assert "gap" not in rest.types
    assert (stream.types + rest.types)[-3:] == TAIL
    await at.check(turns=1)


# --- sending again ---


async def test_a12_the_same_request_again_attaches_to_the_live_run(at: Rack, alice: Client):
    at.llm.script(text(WORDS, delay=0.05))
    async with alice.stream(client_message_id="m1") as first:
        await first.until_text("three")
    again = await alice.ask(client_message_id="m1")
    assert again.run_id == first.run_id
    assert again.events[: len(first.events)] == first.events
    assert again.text == WORDS
    assert len(at.llm.chats) == 1
    late = await alice.ask(client_message_id="m1")
    assert late.events == again.events
    assert len(at.llm.chats) == 1
    await at.check(first, again, late, turns=1)


async def test_b06_one_key_is_one_message_and_one_run(at: Rack, alice: Client):
    at.llm.script(text(WORDS, delay=0.02))
    streams = await asyncio.gather(*(alice.ask(key="k") for _ in range(20)))
    assert len({stream.raw for stream in streams}) == 1
    assert len({stream.run_id for stream in streams}) == 1
    assert len(await alice.messages()) == 2
    assert len(at.llm.chats) == 1
    await at.check(*streams, turns=1)


async def test_b06_the_key_decides_and_not_the_text(at: Rack, alice: Client):
    first = await alice.ask("ok", key="one")
    other = await alice.post("/chat", {"message": "not ok", "session_id": "s"}, headers={"Idempotency-Key": "one"})
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    second = await alice.ask("ok", key="two")
    assert first.run_id != second.run_id
    assert [item["content"] for item in await alice.messages() if item["type"] == "human"] == ["ok", "ok"]
    without = [await alice.ask("ok") for _ in range(2)]
    assert len({first.run_id, second.run_id, *(stream.run_id for stream in without)}) == 4
    await at.check(first, second, *without, turns=4)


async def test_b06_header_and_body_are_one_key(at: Rack, alice: Client):
    body = {"message": "ok", "session_id": "s", "client_message_id": "k"}
    one = (await alice.post("/chat", body, headers={"Idempotency-Key": "k"})).json()
    two = (await alice.post("/chat", {"message": "ok", "session_id": "s"}, headers={"Idempotency-Key": "k"})).json()
    assert one == two
    differ = await alice.post("/chat", body, headers={"Idempotency-Key": "other"})
    assert (differ.status_code, differ.json()["code"]) == (422, "idempotency_key_mismatch")
    await at.check(turns=1)


async def test_b07_a_retry_gets_its_own_run_and_not_the_newest(at: Rack, alice: Client):
    at.llm.script(text("answer to A"), text("answer to B", delay=0.1))
    first = await alice.ask("A", key="a")
    async with alice.stream("B", key="b") as second:
        await second.until_text("answer")
        retried = await alice.ask("A", key="a")
        await second.end()
    assert (retried.text, retried.run_id) == ("answer to A", first.run_id)
    assert second.text == "answer to B"
    await at.check(first, second, retried, turns=2)


async def test_b18_the_loser_of_two_parallel_turns_leaves_nothing(at: Rack, alice: Client):
    at.llm.default = text(WORDS, delay=0.05)
    bodies = [{"message": f"question {number}", "session_id": "s"} for number in range(5)]
    answers = await asyncio.gather(*(alice.post("/chat", body) for body in bodies))
    (winner,) = [answer.json() for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 409]
    assert len(refused) == 4
    for answer in refused:
        assert answer.json()["code"] == "run_active"
        assert answer.json()["run_id"] == winner["run_id"]
    assert winner["response"] == WORDS
    messages = await alice.messages()
    assert [message["run_id"] for message in messages] == [winner["run_id"]] * 2
    assert len(at.llm.chats) == 1
    await at.check(turns=1)


# --- stopping ---


async def stopped(at: Rack, client: Client, stream: Stream) -> dict[str, str]:
    """Stop the run of ``stream``, read it to its end; gives the stored answer."""
    answer = await client.stop(stream.run_id)
    assert answer["status"] in {"stopped", "running"}
    await stream.end()
    assert stream.done
    assert stream.one("done")["status"] == "stopped"
    assert stream.types[-3:] == TAIL
    request = at.llm.chats[-1]
    await asyncio.wait_for(request.ended.wait(), 10)
    assert request.closed_by_client
    return (await client.messages())[-1]


async def test_a16_stop_at_the_third_token(at: Rack, alice: Client):
    at.llm.script(hang_after(3))
    async with alice.stream() as stream:
        await stream.until_text("three")
        answer = await stopped(at, alice, stream)
    assert (answer["status"], answer["content"]) == ("stopped", "one two three ")
    assert stream.one("done")["finish_reason"] is None
    await at.check(stream, turns=1)


@pytest.mark.parametrize("call", [True, False], ids=["tool_call", "answer"])
async def test_a16_stop_before_the_first_token(at: Rack, alice: Client, call: bool):
    late = tool_call("search_knowledge_base", {"query": "x"}) if call else text(WORDS)
    at.llm.script(wait(60, late))
    async with alice.stream() as stream:
        await stream.until_type("rag_step")
        await at.llm.wait_for_chats(1)
        answer = await stopped(at, alice, stream)
    assert (answer["status"], answer["content"]) == ("stopped", "")
    assert (await alice.ask("and now?")).one("done")["status"] == "completed"
    await at.check(stream, turns=2)


async def test_a16_stop_twice_and_after_the_end(at: Rack, alice: Client):
    at.llm.script(hang_after(2))
    async with alice.stream() as stream:
        await stream.until_text("two")
        both = await asyncio.gather(alice.stop(stream.run_id), alice.stop(stream.run_id))
        await stream.end()
    assert {answer["status"] for answer in both} == {"stopped"}
    assert (await alice.stop(stream.run_id))["status"] == "stopped"
    finished = await alice.ask()
    before = await alice.messages()
    assert (await alice.stop(finished.run_id))["status"] == "completed"
    assert await alice.messages() == before
    await at.check(stream, finished, turns=2)


async def test_a16_leaving_is_not_stopping_and_stop_works_after_coming_back(at: Rack, alice: Client):
    at.llm.script(hang_after(3))
    async with alice.stream() as stream:
        await stream.until_text("three")
    assert (await alice.run(stream.run_id))["status"] == "running"
    async with alice.follow(stream.run_id, stream.last_seq) as back:
        answer = await stopped(at, alice, back)
    assert answer["content"] == "one two three "
    assert back.types == TAIL
    await at.check(stream, turns=1)


async def test_e10_the_turn_after_a_stopped_tool_call_is_well_formed(at: Rack, alice: Client):
    at.llm.script(tool_call("search_knowledge_base", {"query": "x"}), hang_after(0))
    async with alice.stream() as stream:
        await at.llm.wait_for_chats(2)
        await alice.stop(stream.run_id)
        await stream.end()
    following = await alice.ask("again?")
    assert following.one("done")["status"] == "completed"
    assert [message["role"] for message in at.llm.chats[2].messages] == ["system", "user"]
    await at.check(stream, following, turns=2)


async def test_a_deleted_session_stops_its_run_and_leaves_nothing(at: Rack, alice: Client):
    at.llm.script(hang_after(2))
    async with alice.stream() as stream:
        await stream.until_text("two")
        assert (await alice.http.delete("/sessions/s")).status_code == 200
        await stream.end()
    assert await alice.messages() == []
    assert (await alice.get(f"/chat/runs/{stream.run_id}")).status_code == 404
    assert (await alice.http.delete("/sessions/s")).status_code == 404
    await at.check(turns=0)


async def test_chat_answers_what_the_stream_tells(at: Rack, alice: Client):
    at.llm.script(text("The answer."))
    body = (await alice.post("/chat", {"message": "hi", "session_id": "s"})).json()
    seen = await alice.replay(body["run_id"])
    done = seen.one("done")
    assert body["response"] == seen.text == "The answer."
    assert {name: body[name] for name in ("run_id", "message_id", "status", "usage", "finish_reason", "flags")} == {
        name: done[name] for name in ("run_id", "message_id", "status", "usage", "finish_reason", "flags")
    }
    assert (body["error"], body["hitl"], body["citations"], body["rag_trace"]) == (None, None, [], None)
    json.dumps(body)
    await at.check(seen, turns=1)
