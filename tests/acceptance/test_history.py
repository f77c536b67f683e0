"""The turn after any fault: what its model is shown is a conversation that the strictest provider takes (E10)."""

import itertools
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.asking import QUESTION, clarify, good, hitl_of, pending, upload
from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import Reply, chunks, close_after, hang_after, status, text, wait
from tests.support.fake_llm_replies import delta
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SAID = "Let me look."
CALL = {
    "index": 0,
    "id": "call_1",
    "type": "function",
    "function": {"name": "search_knowledge_base", "arguments": '{"query": "pump"}'},
}
LOOKING = chunks(delta({"content": SAID}), delta({"tool_calls": [CALL]}), delta({}, finish="tool_calls"))
NEVER = 600.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    env = {"LEASE_SECONDS": "2", "SHUTDOWN_GRACE_SECONDS": "5"}
    async with rack(postgres_url, valkey_url, f"history_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await shared.reset()
    shared.llm._decisions.clear()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        await upload(client)
        yield client


def hang(at: Rack, place: str) -> None:
    """The next turn stays within its tool, or within the model call after it."""
    if place == "tool":
        at.llm.decide("grade", wait(NEVER, good()))
    else:
        at.llm.script(hang_after(0))


async def reached(at: Rack, place: str, calls: int, grades: int) -> None:
    async def there() -> bool:
        return len(at.llm.decisions("grade")) == grades if place == "tool" else len(at.llm.chats) == calls

    await until(there)


async def end(at: Rack, client: Client, stream: Stream, fault: str) -> None:
    """End the turn by ``fault``; the server is there again afterwards."""
    if fault == "stop":
        await client.stop(stream.run_id)
    elif fault == "kill":
        await at.server.kill9()
        await at.server.start()
    else:
        await at.server.restart()
    status = {"stop": "stopped", "kill": "interrupted", "sigterm": "interrupted"}[fault]
    assert (await client.ended(stream.run_id))["status"] == status


def shown(at: Rack) -> list[tuple[str, str]]:
    """The conversation that the model was last shown, before what it did in this turn."""
    messages = [message for message in at.llm.chats[-1].messages if message["role"] != "system"]
    last = max(number for number, message in enumerate(messages) if message["role"] == "user")
    assert all(not message.get("tool_calls") and message["role"] != "tool" for message in messages[:last])
    return [(message["role"], message["content"]) for message in messages[: last + 1]]


@pytest.mark.parametrize(("fault", "place"), list(itertools.product(["stop", "kill", "sigterm"], ["tool", "model"])))
async def test_e10_the_turn_after_one_that_ended_within_a_tool_call(at: Rack, alice: Client, fault: str, place: str):
    at.llm.script(LOOKING)
    hang(at, place)
    async with alice.stream(QUESTION) as stream:
        await stream.until_text(SAID)
        await reached(at, place, calls=2, grades=1)
        await end(at, alice, stream, fault)
    at.llm.script(LOOKING, text("Here."))
    assert (await alice.ask("And now?")).one("done")["status"] == "completed"
    before = [("user", QUESTION), ("assistant", SAID)] if (await alice.messages())[1]["content"] else []
    assert shown(at) == [*before, ("user", "And now?")]
    assert before or fault == "kill"  # which may cost the last text
    await at.check(turns=2)


@pytest.mark.parametrize("reply", [close_after(0), close_after(2), status(401), status(400, {"error": "bad"})])
async def test_e10_the_turn_after_one_that_failed_behind_a_tool_call(at: Rack, alice: Client, reply: Reply):
    at.llm.script(LOOKING, *[reply] * 3)
    failed = await alice.ask(QUESTION)
    assert failed.one("done")["status"] == "failed"
    at.llm._scripts.clear()
    at.llm.script(LOOKING, text("Here."))
    assert (await alice.ask("And now?")).one("done")["status"] == "completed"
    assert shown(at) == [("user", QUESTION), ("assistant", failed.text), ("user", "And now?")]
    await at.check(failed, turns=2)


@pytest.mark.parametrize(("fault", "place"), list(itertools.product(["stop", "kill", "sigterm"], ["tool", "model"])))
async def test_e10_the_turn_after_an_answer_to_a_question_back_that_was_lost(
    at: Rack, alice: Client, fault: str, place: str
):
    at.llm.decide("grade", clarify())
    hitl = hitl_of(await alice.ask(QUESTION))
    calls = len(at.llm.chats)
    hang(at, place)
    async with alice.stream("Pump A") as stream:
        await reached(at, place, calls=calls + 1, grades=2)
        await end(at, alice, stream, fault)
    assert await pending(alice) == hitl
    at.llm.script(text("36 months [1]."))
    answered = await alice.ask("Pump B", hitl_id=hitl["id"])
    assert (answered.text, answered.one("done")["status"]) == ("36 months [1].", "completed")
    assert answered.one("trace")["rag_trace"]["query"] == f"{QUESTION} Pump B"
    asked = (await alice.messages())[1]["content"]
    assert shown(at) == [("user", QUESTION), ("assistant", asked), ("user", "Pump B")]
    assert [message["role"] for message in at.llm.chats[-1].messages[-2:]] == ["assistant", "tool"]
    at.llm.script(LOOKING, text("Also."))
    assert (await alice.ask("And pump A?")).text == f"{SAID}\n\nAlso."
    assert shown(at)[-2:] == [("assistant", "36 months ."), ("user", "And pump A?")]
    await at.check(answered, turns=4)


async def test_an_answer_of_nothing_but_a_number_is_no_empty_message_later(at: Rack, alice: Client):
    at.llm.script(
        LOOKING, text("ok"), chunks(delta({"tool_calls": [CALL]}), delta({}, finish="tool_calls")), text("[1]")
    )
    await alice.ask("first")
    assert (await alice.ask(QUESTION)).text == "[1]"
    at.llm.script(text("Here."))
    assert (await alice.ask("And now?")).text == "Here."
    assert ("user", QUESTION) not in shown(at)
    await at.check(turns=3)


async def test_what_the_provider_withheld_or_refused_is_not_shown_to_it_again(at: Rack, alice: Client):
    at.llm.script(
        text("An evil answer", finish="content_filter"),
        status(400, {"error": {"code": "content_filter", "message": "content management policy"}}),
        text("Fine."),
    )
    withheld = await alice.ask("an evil question")
    assert withheld.one("done")["finish_reason"] == "content_filter"
    assert (await alice.ask("another evil question")).one("error")["code"] == "content_filtered"
    assert (await alice.ask("a good question")).text == "Fine."
    assert shown(at) == [("user", "a good question")]
    assert [message["content"] for message in await alice.messages()][:2] == ["an evil question", "An evil answer"]
    await at.check(withheld, turns=3)
