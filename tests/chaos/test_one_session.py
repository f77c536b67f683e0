"""One session, many clients: each turn is accepted once, in one order, whoever leaves and comes back."""

import asyncio

import pytest

from tests.acceptance.test_one_session import echo
from tests.chaos.rig import Trial, messages_of
from tests.support.chat_client import Client, EndOfStream, Stream

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def one_turn(trial: Trial, both: tuple[Client, Client], message: str, seen: list[Stream]) -> None:
    """Ask until it is accepted; read some of the answer, leave, and read the rest elsewhere, or not at all."""
    while True:
        client = trial.random.choice(both)
        async with client.stream(message, key=message) as stream:
            if stream.response.status_code == 200:
                await some(trial, stream)
                break
            assert stream.response.status_code == 409, stream.response.text
            running = stream.response.json()["run_id"]
        await trial.random.choice(both).replay(running)
    if trial.random.random() < 0.5:
        rest = await trial.random.choice(both).replay(stream.run_id, stream.last_seq)
        stream.events += [event for event in rest.events if event["seq"] > stream.last_seq]
        assert "done" in stream.types
    seen.append(stream)


async def some(trial: Trial, stream: Stream) -> None:
    """Read a while, or to the end."""
    wanted = trial.random.choice([0, 1, 2, 4, 6, 100])
    try:
        await stream.until(lambda got: len(got.events) >= wanted)
    except EndOfStream:
        assert stream.done


async def test_clients_of_one_session(trial: Trial, alice: tuple[Client, Client]):
    """10 clients with 10 turns each on one session, leaving at random"""
    trial.at.llm.default = echo
    clients, each = trial.size(10, 4), trial.size(10, 2)
    seen: list[Stream] = []

    async def converse(number: int) -> None:
        async with trial.same(alice[0], trial.owner) as here, trial.same(alice[0]) as there:
            for turn in range(each):
                await one_turn(trial, (here, there), f"q{number}-{turn}", seen)

    await asyncio.gather(*(converse(number) for number in range(clients)))
    here, there = alice
    for run in {stream.run_id for stream in seen}:
        await there.ended(run)
    messages = (await there.get("/sessions/s", params={"limit": 500})).json()["messages"]
    assert messages == (await here.get("/sessions/s", params={"limit": 500})).json()["messages"]
    questions = messages_of(messages, "human")
    assert sorted(questions) == sorted(f"q{number}-{turn}" for number in range(clients) for turn in range(each))
    assert [message["type"] for message in messages] == ["human", "ai"] * len(questions)
    assert messages_of(messages, "ai") == [f"{question} " * 10 for question in questions]
    assert len(trial.at.llm.chats) == len(questions)
    await trial.check(*seen, turns=clients * each)
