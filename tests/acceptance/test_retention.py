"""What is kept for a day only: the events of ended runs, and the keys of requests. A server sweeps as it starts."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client
from tests.support.fake_llm import text, tool_call
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORDS = "one two three four five six seven eight nine ten "


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["true", "false"], ids=["memory", "table"])
async def shared(
    request: pytest.FixtureRequest, postgres_url: URL, valkey_url: str, worker_id: str
) -> AsyncIterator[Rack]:
    env = {"EVENT_MEMORY_LOG": request.param}
    async with rack(postgres_url, valkey_url, f"retention_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await shared.reset()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


async def a_day_later(at: Rack, run_id: str) -> None:
    """The run began and ended 25 hours ago; the server starts anew."""
    await at.sql(
        "update runs set created_at = created_at - interval '25 h', finished_at = finished_at - interval '25 h'"
        " where id = cast(:id as uuid)",
        id=run_id,
    )
    await at.server.restart()


async def events_of(at: Rack, run_id: str) -> int:
    ((count,),) = await at.sql("select count(*) from run_events where run_id = cast(:id as uuid)", id=run_id)
    return count


async def test_events_go_after_a_day_and_a_gap_stands_for_them(at: Rack, alice: Client):
    at.llm.script(tool_call("search_knowledge_base", {"query": "x"}), text(WORDS), text("young"))
    old = await alice.ask("old", "old")
    young = await alice.ask("young", "young")
    await a_day_later(at, old.run_id)

    async def swept() -> bool:
        return await events_of(at, old.run_id) == 0

    await until(swept)
    assert await events_of(at, young.run_id) > 0
    assert (await alice.replay(young.run_id)).events == young.events
    for after in (0, 3, len(old.events) - 4):
        back = await alice.replay(old.run_id, after)
        assert (back.types, back.text, back.done) == (["gap", "trace", "citations", "done"], WORDS, True)
        assert back.events[1:] == old.events[-3:]
    assert (await alice.replay(old.run_id, old.last_seq - 1)).events == old.events[-1:]
    assert (await alice.replay(old.run_id, old.last_seq)).events == []
    assert (await alice.messages("old"))[-1]["content"] == WORDS
    await at.check(old, young, turns=2)


@pytest.mark.parametrize("route", ["/chat", "/chat/stream"])
async def test_b06_a_key_is_kept_for_a_day_and_then_free(at: Rack, alice: Client, route: str):
    at.llm.script(text("first"), text("second"))
    first = (await alice.post("/chat", {"message": "one", "session_id": "s"}, headers={"Idempotency-Key": "k"})).json()

    async def again(message: str) -> tuple[int, str]:
        answer = await alice.post(route, {"message": message, "session_id": "s"}, headers={"Idempotency-Key": "k"})
        return answer.status_code, answer.headers.get("x-run-id") or answer.json().get("run_id", "")

    await at.server.restart()
    assert await again("one") == (200, first["run_id"]), "kept over a restart"
    assert (await again("two"))[0] == 409
    await a_day_later(at, first["run_id"])

    async def freed() -> bool:
        return await at.sql("select * from runs where client_message_id is not null") == []

    await until(freed)
    status, run_id = await again("two")
    assert (status, run_id == first["run_id"]) == (200, False)
    assert (await again("two"))[1] == run_id
    await at.check(turns=2)
