"""A question back that waits: over a kill of every worker, answered twice, answered and stopped, and out of date."""

import asyncio

import pytest

from tests.acceptance.asking import OPTIONS, QUESTION, clarify, good, hitl_of, pending, upload
from tests.chaos.rig import Trial
from tests.support.chat_client import Client
from tests.support.fake_llm import text, wait

pytestmark = pytest.mark.asyncio(loop_scope="session")
ANSWER = "It lasts 36 months [1]."


async def asked_back(trial: Trial, client: Client, session: str = "s") -> str:
    """A session in which a question waits; gives its id."""
    trial.at.llm.decide("grade", clarify())
    return hitl_of(await client.ask(QUESTION, session))["id"]


async def test_asked_and_killed(trial: Trial, alice: tuple[Client, Client]):
    """A question back waits while both workers are killed and come back"""
    here, there = alice
    await upload(here)
    hitl_id = await asked_back(trial, here)
    waiting = await pending(there)
    await asyncio.gather(trial.owner.kill9(), trial.other.kill9())
    await asyncio.gather(trial.owner.start(), trial.other.start())
    assert await pending(there) == await pending(here) == waiting
    stale = await here.post("/chat", {"message": "Pump A", "session_id": "s", "hitl_id": "another"})
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_hitl")
    seen = await there.ask("Pump B", hitl_id=hitl_id)
    assert seen.one("trace")["rag_trace"]["hitl_answer"] == "Pump B"
    assert await pending(here) is None
    again = await here.post("/chat", {"message": "Pump A", "session_id": "s", "hitl_id": hitl_id})
    assert (again.status_code, again.json()["code"]) == (409, "stale_hitl")
    assert len(await here.messages()) == 4
    await trial.check(seen, turns=2)


@pytest.mark.race
async def test_answered_twice(trial: Trial, alice: tuple[Client, Client]):
    """A question back is answered on both workers at once"""
    await upload(alice[0])
    hitl_id = await asked_back(trial, alice[0])
    first = trial.random.choice([0, 1])
    bodies = [{"message": OPTIONS[n], "session_id": "s", "hitl_id": hitl_id} for n in (first, 1 - first)]
    answers = await asyncio.gather(*(client.post("/chat", body) for client, body in zip(alice, bodies, strict=True)))
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    (won,) = [answer.json() for answer in answers if answer.status_code == 200]
    (lost,) = [answer.json() for answer in answers if answer.status_code == 409]
    assert lost["code"] in {"run_active", "stale_hitl"}
    messages = await alice[1].messages()
    assert (len(messages), messages[2]["content"]) == (4, won["rag_trace"]["hitl_answer"])
    assert await pending(alice[1]) is None
    await trial.check(turns=2)


@pytest.mark.race
async def test_answered_and_stopped(trial: Trial, alice: tuple[Client, Client]):
    """A question back is answered, and the turn stopped from the other worker at once"""
    here, there = alice
    await upload(here)
    hitl_id = await asked_back(trial, here)
    trial.at.llm.decide("grade", wait(0.05, good()))
    trial.at.llm.script(text(ANSWER, delay=0.02))
    async with here.stream("Pump B", hitl_id=hitl_id) as stream:
        assert stream.response.status_code == 200
        await asyncio.sleep(trial.random.choice([0, 0.01, 0.1, 0.2]))
        await there.stop(stream.run_id)
        await stream.end()
    ended = await there.ended(stream.run_id)
    messages = await there.messages()
    assert (messages[0]["content"], messages[2]["content"]) == (QUESTION, "Pump B"), "the answer is never lost"
    assert messages[3]["status"] == ended["status"]
    turns = 2
    if ended["status"] != "completed":
        assert ended["status"] == "stopped"
        trial.at.llm._decisions.clear()
        again = await there.ask("Pump B", hitl_id=hitl_id)
        assert again.one("trace")["rag_trace"]["hitl_answer"] == "Pump B"
        turns = 3
    assert await pending(here) is None
    await trial.check(stream, turns=turns)
