"""PostgreSQL and Redis slow, cut, refusing and back again, under a real server."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client
from tests.support.fake_llm import hang_after, text
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORDS = "one two three four five six seven eight nine ten "
from_memory = pytest.mark.parametrize("shared", ["true"], ids=["memory"], indirect=True)
"""Who reads the table sees nothing while it is away."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["true", "false"], ids=["memory", "table"])
async def shared(
    request: pytest.FixtureRequest, postgres_url: URL, valkey_url: str, worker_id: str
) -> AsyncIterator[Rack]:
    env = {"LEASE_SECONDS": "2", "EVENT_MEMORY_LOG": request.param}
    async with rack(postgres_url, valkey_url, f"faults_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await shared.reset()
    await shared.server.wait_ready()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


async def test_b10_the_next_prompt_holds_the_answer_whose_done_was_just_read(at: Rack, alice: Client):
    at.postgres.on_bytes(b"COMMIT", 0.3, times=None)
    at.postgres.on_bytes(b"answer ", 0.3, times=None)  # the end of a turn is one statement, which commits itself
    for number in range(3):
        at.llm.script(text(f"answer {number}"))
        async with alice.stream(f"question {number}") as stream:
            await stream.until_type("done")
            query = "select status, content from chat_messages where run_id = cast(:id as uuid) and type = 'ai'"
            assert await at.sql(query, id=stream.run_id) == [("completed", f"answer {number}")]
    async with alice.stream("question 3") as last:
        await last.end()
    prompt = [message["content"] for message in at.llm.chats[3].messages[1:]]
    earlier = [said for number in range(3) for said in (f"question {number}", f"answer {number}")]
    assert prompt == [*earlier, "question 3"]
    await at.postgres.restore()
    await at.check(last, turns=4)


async def test_b18_events_that_cannot_be_stored_end_the_call_and_then_free_the_session(at: Rack, alice: Client):
    at.llm.script(text(WORDS * 30, delay=0.2), text("second"))  # the model goes on for a minute
    async with alice.stream() as stream:
        await stream.until_text("five")
        for statement in (b"insert into run_events", b"INSERT INTO run_events"):
            at.postgres.on_bytes(statement, "cut", times=None)
        at.postgres.cut()  # known statements are not sent again on an open connection
        refused = await alice.post("/chat", {"message": "at once", "session_id": "s"})
        assert (refused.status_code, refused.json()["code"]) in {(409, "run_active"), (503, "storage_unavailable")}
        assert not at.llm.chats[0].closed_by_client
        await until(lambda: free(alice, at))
        await stream.end()
    assert (await alice.run(stream.run_id))["status"] == "failed"
    await at.postgres.restore()
    answer = (await alice.messages())[-1]
    assert answer["status"] == "failed"
    assert answer["content"].startswith("one two three four five ")
    assert (WORDS * 30).startswith(answer["content"])
    # Who reads the table is cut with it, and comes back with the cursor.
    end = stream if stream.done else await alice.replay(stream.run_id, stream.last_seq)
    assert end.one("error")["code"] == "storage_unavailable"
    assert end.one("done")["status"] == "failed"
    after = await alice.ask("second")
    assert after.text == "second"
    assert len(at.llm.chats) == 2
    late = await alice.replay(stream.run_id)
    assert late.text == answer["content"]
    assert late.text.startswith(stream.text)
    assert late.types[-4:] == ["trace", "citations", "error", "done"]
    await at.check(stream, after, turns=2)


async def free(client: Client, at: Rack) -> bool:
    """Whether the session has no active run; never before the provider call was closed."""
    if not await terminal(client):
        return False
    assert at.llm.chats[0].closed_by_client
    return True


async def terminal(client: Client) -> bool:
    answer = await client.get("/sessions/s")
    return answer.status_code == 200 and answer.json()["messages"][-1]["status"] != "pending"


async def test_without_postgres_503_and_then_as_before(at: Rack, alice: Client):
    before = await alice.ask()
    at.postgres.refuse()
    for answer in (
        await alice.get("/sessions"),
        await alice.get("/sessions/s"),
        await alice.get(f"/chat/runs/{before.run_id}"),
        await alice.get(f"/chat/runs/{before.run_id}/stream"),
        await alice.post("/chat", {"message": "hi"}),
        await alice.post("/chat/stream", {"message": "hi"}),
        await alice.post(f"/chat/runs/{before.run_id}/stop"),
        await alice.post("/auth/login", {"username": alice.name, "password": "correct horse battery"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
    assert (await alice.get("/health/live")).status_code == 200
    assert (await alice.get("/health/ready")).status_code == 503
    await at.postgres.restore()
    await at.server.wait_ready()
    assert len(await alice.messages()) == 2
    assert (await alice.ask("again")).one("done")["status"] == "completed"
    await at.check(before, turns=2)


@from_memory
async def test_an_answer_waits_for_postgres_and_is_stored_before_done(at: Rack, alice: Client):
    at.llm.script(text(WORDS, delay=0.05))
    async with alice.stream() as stream:
        await stream.until_text("three")
        at.postgres.cut()
        at.postgres.blackhole()
        await stream.until_text("ten ")
        await asyncio.sleep(0.3)
        assert "done" not in stream.types
        await at.postgres.restore()
        await stream.end()
    assert stream.one("done")["status"] == "completed"
    assert (await alice.messages())[-1]["content"] == WORDS
    await at.check(stream, turns=1)


@from_memory
async def test_postgres_away_beyond_the_lease_ends_the_stream_without_done(at: Rack, alice: Client):
    at.llm.script(text(WORDS, delay=0.05))
    async with alice.stream() as stream:
        await stream.until_text("three")
        at.postgres.refuse()
        await stream.end()
    assert stream.types[-1] == "error"
    assert stream.one("error")["code"] == "storage_unavailable"
    assert not stream.done
    await at.postgres.restore()
    await at.server.wait_ready()
    assert (await alice.ended(stream.run_id))["status"] == "interrupted"
    back = await alice.replay(stream.run_id, stream.last_seq)
    assert back.types == ["gap", "trace", "citations", "error", "done"]
    assert back.text == (await alice.messages())[-1]["content"]
    assert WORDS.startswith(back.text)
    assert (await alice.ask("again")).one("done")["status"] == "completed"
    await at.check(turns=2)


async def test_a_commit_whose_answer_is_lost_ends_the_turn_once(at: Rack, alice: Client):
    """Whatever transaction of the turn it hits."""
    for nth in range(6):
        at.llm.script(text(WORDS, delay=0.03))
        async with alice.stream(f"question {nth}", f"s{nth}") as stream:
            await stream.until_text("two")
            rule = at.postgres.on_bytes(b"COMMIT", "cut_reply")
            if nth % 2:
                await stream.until_text("ten ")
                rule.times = rule.hits + 1
            await stream.end()
        at.postgres.rules.clear()
        assert stream.done
        assert stream.one("done")["status"] == "completed"
        assert stream.text == WORDS
        assert (await alice.replay(stream.run_id)).text == WORDS
    await at.check(turns=6)


async def test_c06_flushing_redis_at_random_moments_loses_nothing(at: Rack, alice: Client):
    at.llm.default = text(WORDS, delay=0.02)
    moments = random.Random(6)
    stop = asyncio.Event()

    async def flush() -> None:
        while not stop.is_set():
            await asyncio.sleep(moments.uniform(0, 0.05))
            await at.flush_redis()

    flushing = asyncio.create_task(flush())
    streams = []
    try:
        for number in range(8):
            streams.append(await alice.ask(f"question {number}"))
            messages = await alice.messages()
            assert [item["content"] for item in messages[-2:]] == [f"question {number}", WORDS]
            assert len(messages) == 2 * number + 2
    finally:
        stop.set()
        await flushing
    assert (await alice.get("/sessions")).json()["sessions"][0]["message_count"] == 16
    await at.check(*streams, turns=8)


@pytest.mark.parametrize("fault", ["refuse", "blackhole"])
async def test_c04_without_redis_everything_works(at: Rack, alice: Client, fault: str):
    first = await alice.ask("before", key="k")
    getattr(at.redis, fault)()
    second = await alice.ask("during")
    assert second.one("done")["status"] == "completed"
    assert [item["content"] for item in await alice.messages() if item["type"] == "human"] == ["before", "during"]
    assert (await alice.ask("before", key="k")).run_id == first.run_id
    assert (await alice.get("/sessions")).json()["sessions"][0]["message_count"] == 4
    assert (await alice.http.patch("/sessions/s", json={"title": "New"})).json()["title"] == "New"
    assert (await alice.get("/sessions")).json()["sessions"][0]["title"] == "New"
    login = {"username": alice.name, "password": "correct horse battery"}
    assert (await alice.post("/auth/login", login)).status_code == 200
    ready = (await alice.get("/health/ready")).json()
    assert (ready["status"], ready["dependencies"]["redis"]) == ("degraded", "degraded")
    at.llm.script(hang_after(1))
    async with alice.stream("stop me") as stream:
        await stream.until_text("one")
        await alice.stop(stream.run_id)
        await stream.end()
    assert stream.one("done")["status"] == "stopped"
    await at.check(first, second, stream, turns=3)
    await at.redis.restore()
    await until(lambda: recovered(alice))
    assert [item["content"] for item in await alice.messages() if item["type"] == "human"][-1] == "stop me"


async def recovered(client: Client) -> bool:
    return (await client.get("/health/ready")).json()["status"] == "ok"
