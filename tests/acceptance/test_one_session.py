"""One session and two server processes: parallel turns, answers, stops and interruptions, wherever they arrive."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from sqlalchemy import URL

from backend.chat.wakeups import channel_of
from tests.acceptance.asking import OPTIONS, QUESTION, clarify, good, hitl_of, pending, upload
from tests.acceptance.metrics import metric
from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client, Stream, signed_in
from tests.support.fake_llm import Reply, Request, close_after, hang_after, reset_after, text, tool_call, wait
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
NEVER = 600.0
WORDS = "one two three four five six seven eight nine ten "


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["true", "false"], ids=["memory", "table"])
async def shared(
    request: pytest.FixtureRequest, postgres_url: URL, valkey_url: str, worker_id: str
) -> AsyncIterator[Rack]:
    env = {"EVENT_MEMORY_LOG": request.param, "LEASE_SECONDS": "5", "LLM_IDLE_SECONDS": "2"}
    async with rack(postgres_url, valkey_url, f"session_{worker_id}", env, peer=True) as made:
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


@pytest_asyncio.fixture(loop_scope="module")
async def there(at: Rack, alice: Client) -> AsyncIterator[Client]:
    """The same account at the other worker."""
    assert at.peer is not None
    token = alice.http.headers["authorization"].removeprefix("Bearer ")
    async with signed_in(at.peer.url, alice.name, token) as client:
        yield client


def echo(request: Request) -> Reply:
    """An answer that names its question in every word."""
    return text("", tokens=[f"{request.messages[-1]['content']} "] * 10, delay=0.01)


# --- turns at once ---


async def test_b09_ten_turns_at_once_on_two_workers(at: Rack, alice: Client, there: Client):
    at.llm.default = echo
    waiting, accepted = [f"q{number}" for number in range(10)], list[str]()
    while waiting:
        sent = list(zip(waiting, [alice, there] * len(waiting), strict=False))
        answers = await asyncio.gather(
            *(client.post("/chat", {"message": message, "session_id": "s"}) for message, client in sent)
        )
        won = [answer.json() for answer in answers if answer.status_code == 200]
        refused = [answer.json() for answer in answers if answer.status_code != 200]
        assert len(won) >= 1
        assert {body["code"] for body in refused} <= {"run_active"}
        active = {run["run_id"] for run in won}
        assert {body["run_id"] for body in refused} <= active
        accepted += [message for (message, _), answer in zip(sent, answers, strict=True) if answer.status_code == 200]
        waiting = [message for message in waiting if message not in accepted]
    messages = await there.messages()
    assert messages == await alice.messages()
    assert [message["type"] for message in messages] == ["human", "ai"] * 10
    for question, answer in zip(messages[::2], messages[1::2], strict=True):
        assert answer["content"] == f"{question['content']} " * 10
        assert (answer["run_id"], answer["status"]) == (question["run_id"], "completed")
        assert (await there.replay(answer["run_id"])).text == answer["content"]
    assert sorted(message["content"] for message in messages[::2]) == sorted(accepted)
    await at.check(turns=10)


async def test_b18_of_turns_at_once_on_two_workers_the_losers_leave_nothing(at: Rack, alice: Client, there: Client):
    at.llm.default = text(WORDS, delay=0.02)
    for number in range(5):
        bodies = [{"message": f"question {letter}", "session_id": f"s{number}"} for letter in "abcdefghij"]
        clients = [alice, there] * 5
        answers = await asyncio.gather(
            *(client.post("/chat", body) for client, body in zip(clients, bodies, strict=True))
        )
        (winner,) = [answer.json() for answer in answers if answer.status_code == 200]
        refused = [answer.json() for answer in answers if answer.status_code == 409]
        assert {(body["code"], body["run_id"]) for body in refused} == {("run_active", winner["run_id"])}
        assert [message["run_id"] for message in await there.messages(f"s{number}")] == [winner["run_id"]] * 2
    assert len(at.llm.chats) == 5
    await at.check(turns=5)


async def test_b06_one_key_is_one_turn_on_any_worker_and_route(at: Rack, alice: Client, there: Client):
    at.llm.script(text(WORDS, delay=0.02))
    body = {"message": "How long?", "session_id": "s"}
    headers = {"Idempotency-Key": "k"}
    awaited = [client.post("/chat", body, headers=headers) for client in [alice, there] * 8]
    watched = [client.ask(key="k") for client in [alice, there] * 7]
    answers, streams = await asyncio.gather(asyncio.gather(*awaited), asyncio.gather(*watched))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    one = answers[0].json()
    assert (one["response"], one["status"]) == (WORDS, "completed")
    for stream in streams:
        assert (stream.run_id, stream.text) == (one["run_id"], WORDS)
        assert stream.events == streams[0].events
    other = await there.post("/chat", {**body, "message": "Not that."}, headers=headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert len(at.llm.chats) == 1
    await at.check(*streams, turns=1)
    again = await there.post("/chat", body, headers={"Idempotency-Key": "another"})
    assert again.json()["run_id"] != one["run_id"]
    await at.check(turns=2)


async def test_b07_a_retry_of_a_turn_that_goes_on_is_that_turn(at: Rack, alice: Client, there: Client):
    at.llm.script(text(WORDS, delay=0.1), text("answer to B"))
    async with alice.stream("A", key="a") as dropped:
        await dropped.until_text("one")
    refused = await there.post("/chat", {"message": "B", "session_id": "s"}, headers={"Idempotency-Key": "b"})
    assert (refused.json()["code"], refused.json()["run_id"]) == ("run_active", dropped.run_id)
    retried = await there.ask("A", key="a")
    assert (retried.run_id, retried.text) == (dropped.run_id, WORDS)
    assert (await there.ask("B", key="b")).text == "answer to B"
    assert (await alice.ask("A", key="a")).events == retried.events
    await at.check(dropped, retried, turns=2)


async def test_c08_two_subscribers_on_two_workers_read_each_run_from_its_first_event(
    at: Rack, alice: Client, there: Client
):
    for number in range(50):
        at.llm.script(text(f"answer {number}"))
        async with alice.stream(f"question {number}") as stream, there.follow(stream.run_id) as second:
            await asyncio.gather(stream.end(), second.end())
        assert stream.events == second.events
        assert [event["seq"] for event in stream.events] == list(range(1, len(stream.events) + 1))
        assert (stream.text, second.done) == (f"answer {number}", True)
    await at.check(turns=50)


# --- stopping and interrupting ---


def planning(at: Rack) -> None:
    at.llm.script(tool_call("search_knowledge_base", {"query": "pumps and valves, how do they differ?"}))
    at.llm.decide("plan", wait(NEVER, good()))


def retrieving(at: Rack) -> None:
    at.llm.script(tool_call("search_knowledge_base", {"query": "pump"}))
    at.llm.decide("grade", wait(NEVER, good()))


PHASES: dict[str, Callable[[Rack], None]] = {
    "before_the_first_byte": lambda at: at.llm.script(hang_after(0)),
    "while_planning": planning,
    "while_retrieving": retrieving,
    "after_retrieval": lambda at: at.llm.script(tool_call("search_knowledge_base", {"query": "pump"}), hang_after(0)),
    "within_the_answer": lambda at: at.llm.script(hang_after(3)),
}
CALLS = {"while_planning": 2, "while_retrieving": 3, "after_retrieval": 4}


@pytest.mark.parametrize("phase", PHASES)
async def test_a16_stop_on_another_worker_ends_the_call_in_every_phase(
    at: Rack, alice: Client, there: Client, phase: str
):
    await upload(alice)
    at.llm.requests.clear()
    PHASES[phase](at)
    async with alice.stream("How do pumps and valves differ?") as here, there.follow(here.run_id) as elsewhere:
        await until(lambda: len(at.llm.requests) >= CALLS.get(phase, 1))
        if phase == "within_the_answer":
            await here.until_text("three")
        answers = await asyncio.gather(there.stop(here.run_id), there.stop(here.run_id))
        assert {answer["status"] for answer in answers} <= {"running", "stopped"}
        last = at.llm.requests[-1]
        await asyncio.wait_for(last.ended.wait(), 20)
        assert last.closed_by_client
        await here.end()
        await elsewhere.end()
    for seen in (here, elsewhere):
        assert (seen.one("done")["status"], seen.done) == ("stopped", True)
        assert seen.text == ("one two three " if phase == "within_the_answer" else "")
    assert (await there.messages())[-1]["status"] == "stopped"
    assert (await there.stop(here.run_id))["status"] == (await alice.stop(here.run_id))["status"] == "stopped"
    at.llm._decisions.clear()
    at.llm.script(text("Again."))
    assert (await there.ask("And now?")).text == "Again."
    await at.check(here, elsewhere, turns=2)


async def test_interrupting_stops_the_run_of_another_worker_and_then_starts(at: Rack, alice: Client, there: Client):
    at.llm.script(hang_after(3), hang_after(2), text("third"))
    async with alice.stream("first") as first:
        await first.until_text("three")
        async with there.stream("second", multitask="interrupt") as second:
            await second.until_text("two")
            assert at.llm.chats[0].closed_by_client, "the first call was ended before the second began"
            await first.end()
            third = await alice.post("/chat", {"message": "third", "session_id": "s", "multitask": "interrupt"})
            assert third.json()["response"] == "third"
            await second.end()
    assert (first.text, first.one("done")["status"]) == ("one two three ", "stopped")
    assert (second.text, second.one("done")["status"]) == ("one two ", "stopped")
    assert [(message["content"], message["status"]) for message in await there.messages()] == [
        ("first", "completed"),
        ("one two three ", "stopped"),
        ("second", "completed"),
        ("one two ", "stopped"),
        ("third", "completed"),
        ("third", "completed"),
    ]
    shown = [message["content"] for message in at.llm.chats[2].messages if message["role"] != "system"]
    assert shown == ["first", "one two three ", "second", "one two ", "third"]
    await at.check(first, second, turns=3)


# --- a question back ---


async def asked_back(at: Rack, client: Client, session: str = "s") -> str:
    """A session in which a question waits; gives its id."""
    at.llm.decide("grade", clarify())
    return hitl_of(await client.ask(QUESTION, session))["id"]


@pytest.mark.parametrize("seconds", [0, 0.01, 0.1])
async def test_b13_an_answer_and_a_stop_from_another_worker_lose_nothing(
    at: Rack, alice: Client, there: Client, seconds: float
):
    await upload(alice)
    hitl_id = await asked_back(at, alice)
    at.llm.decide("grade", wait(0.05, good()))
    at.llm.script(text("It lasts 36 months [1].", delay=0.02))
    async with alice.stream("Pump B", hitl_id=hitl_id) as stream:
        assert stream.response.status_code == 200
        assert (await there.messages())[2]["content"] == "Pump B", "durable before the answer"
        await asyncio.sleep(seconds)
        await there.stop(stream.run_id)
        await stream.end()
    ended = await there.ended(stream.run_id)
    messages = await there.messages()
    assert (messages[0]["content"], messages[2]["content"]) == (QUESTION, "Pump B")
    assert messages[3]["status"] == ended["status"]
    if ended["status"] != "completed":
        assert ended["status"] == "stopped"
        at.llm._decisions.clear()
        again = await there.ask("Pump B", hitl_id=hitl_id)
        assert again.one("trace")["rag_trace"]["hitl_answer"] == "Pump B"
    assert await pending(alice) is None
    await at.check(stream)


async def test_b13_of_two_answers_at_once_on_two_workers_one_wins(at: Rack, alice: Client, there: Client):
    await upload(alice)
    for number in range(5):
        session = f"s{number}"
        hitl_id = await asked_back(at, alice, session)
        bodies = [{"message": name, "session_id": session, "hitl_id": hitl_id} for name in OPTIONS]
        answers = await asyncio.gather(alice.post("/chat", bodies[0]), there.post("/chat", bodies[1]))
        assert sorted(answer.status_code for answer in answers) == [200, 409]
        (won,) = [answer.json() for answer in answers if answer.status_code == 200]
        (lost,) = [answer.json() for answer in answers if answer.status_code == 409]
        assert lost["code"] in {"run_active", "stale_hitl"}
        messages = await there.messages(session)
        assert (len(messages), messages[2]["content"]) == (4, won["rag_trace"]["hitl_answer"])
        stale = await there.post("/chat", bodies[0])
        assert (stale.status_code, stale.json()["code"]) == (409, "stale_hitl")
        assert await pending(there, session) is None
    await at.check(turns=10)


# --- what a run leaves behind ---


async def listeners(at: Rack) -> tuple[int, int]:
    """Subscriptions to the workers' channel, and clients that Redis has blocked."""
    async with Redis.from_url(at.valkey_url) as redis:
        return next(iter(await redis.pubsub_numsub(channel_of(redis))))[1], (await redis.info())["blocked_clients"]


async def nothing_left(at: Rack) -> bool:
    assert at.peer is not None
    urls = (at.server.url, at.peer.url)
    return [await metric(url, name) for url in urls for name in ("active_runs", "stream_subscribers")] == [0] * 4


@pytest.mark.parametrize("end", ["error", "stop", "timeout"])
async def test_b16_a_run_that_ends_badly_leaves_no_pointer_and_no_subscriber(
    at: Rack, alice: Client, there: Client, end: str
):
    await until(lambda: both_listen(at))
    before = await listeners(at)
    at.llm.script(close_after(3) if end == "error" else hang_after(3), text("Again."))
    async with alice.stream() as here, there.follow(here.run_id) as elsewhere, there.follow(here.run_id) as left:
        await left.until_type("run_started")
        await left.response.aclose()
        if end == "stop":
            await here.until_text("three")
            await there.stop(here.run_id)
        await asyncio.gather(here.end(), elsewhere.end())
    expected = {"error": "failed", "stop": "stopped", "timeout": "failed"}[end]
    assert here.one("done")["status"] == elsewhere.one("done")["status"] == expected
    if end == "timeout":
        assert here.one("error")["code"] == "provider_timeout"
    await until(lambda: nothing_left(at))
    assert await listeners(at) == before
    assert [message["status"] for message in await there.messages()] == ["completed", expected]
    assert (await there.ask("And now?")).text == "Again."
    await at.check(here, elsewhere, turns=2)


@pytest.mark.parametrize("broken", [reset_after(5), close_after(5), hang_after(5)], ids=["reset", "closed", "silent"])
async def test_a14_an_answer_that_breaks_off_is_failed_with_its_text_on_every_worker(
    at: Rack, alice: Client, there: Client, broken: Reply
):
    at.llm.script(broken, text("Again."))
    async with alice.stream() as here, there.follow(here.run_id) as elsewhere:
        await asyncio.gather(here.end(), elsewhere.end())
    assert here.response.status_code == 200
    for seen in (here, elsewhere, await there.replay(here.run_id)):
        assert seen.types[-4:] == ["trace", "citations", "error", "done"]
        assert seen.one("error")["code"].startswith("provider_")
        assert isinstance(seen.one("error")["retryable"], bool)
        assert (seen.one("done")["status"], seen.text) == ("failed", "one two three four five ")
    answer = (await there.messages())[-1]
    assert (answer["status"], answer["content"]) == ("failed", here.text)
    assert len(at.llm.chats) == 1
    assert (await there.ask("And now?")).text == "Again."
    await at.check(here, elsewhere, turns=2)


async def both_listen(at: Rack) -> bool:
    return (await listeners(at))[0] >= 2


# --- an end that nobody told ---


async def test_a15_a_subscriber_of_an_ended_run_gets_its_end_without_its_events(at: Rack, alice: Client):
    at.llm.script(text(WORDS))
    seen = await alice.ask()
    await at.sql("delete from run_events")
    await at.flush_redis()
    await at.server.restart()
    for after in (0, 3, seen.last_seq - 2, seen.last_seq):
        back: Stream = await alice.replay(seen.run_id, after)
        assert back.done
        assert back.events == [] if after == seen.last_seq else back.events[-1] == seen.events[-1]
    whole = await alice.replay(seen.run_id)
    assert (whole.types, whole.text) == (["gap", "trace", "citations", "done"], WORDS)
    await at.check(seen, whole, turns=1)


async def test_a15_a_subscriber_who_was_told_nothing_looks_for_itself(at: Rack, alice: Client, there: Client):
    """The end is in the database alone: no hint comes, and the events are gone."""
    at.llm.script(hang_after(3))
    async with alice.stream() as here, there.follow(here.run_id) as elsewhere:
        await elsewhere.until_text("three")
        at.redis.blackhole()
        await alice.stop(here.run_id)
        await at.sql("delete from run_events")
        await asyncio.gather(here.end(), elsewhere.end())
    assert (elsewhere.done, elsewhere.one("done")["status"]) == (True, "stopped")
    assert elsewhere.text == here.text == "one two three "
    await at.redis.restore()
    await at.check(here, elsewhere, turns=1)
