"""Both workers are ended in order and started again, one after the other, while everybody goes on asking."""

import asyncio

import httpx
import pytest

from tests.chaos.rig import WORDS, Trial, resumed
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import text
from tests.support.server import ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def accepted(clients: tuple[Client, Client], session: str, key: str) -> Stream:
    """One turn, at whatever worker takes it: sent again with its key until there is an answer, read to its end."""
    for attempt in range(10_000):
        client = clients[attempt % 2]
        try:
            async with client.stream("How long?", session, key) as stream:
                if stream.response.status_code == 200:
                    try:
                        await stream.end()
                    except httpx.TransportError:
                        assert not stream.done
                    return await resumed(stream, *clients)
                assert stream.response.status_code == 503, stream.response.text
                assert stream.response.json()["code"] in {"draining", "storage_unavailable"}
        except httpx.TransportError:
            pass  # refused, or cut before an answer: the same key is sent again
        await asyncio.sleep(0.1)
    raise AssertionError("never accepted")


async def restart(server: ServerProcess) -> None:
    assert await server.sigterm() == 0
    await server.start()


async def test_rolling_restart(trial: Trial, alice: tuple[Client, Client]):
    """SIGTERM to one worker after the other under 50 streams"""
    count = trial.size(50, 10)
    trial.at.llm.default = text(WORDS * 2, delay=0.1)
    over = asyncio.Event()
    seen: list[Stream] = []

    async def converse(number: int) -> None:
        clients = alice if number % 2 else (alice[1], alice[0])
        for turn in range(10_000):
            last = over.is_set()
            seen.append(await accepted(clients, f"s{number}", f"k{number}-{turn}"))
            if last:
                return

    talking = asyncio.gather(*(converse(number) for number in range(count)))
    await trial.at.llm.wait_for_chats(count)
    await restart(trial.owner)
    await restart(trial.other)
    over.set()
    await talking
    ends = [stream.one("done")["status"] for stream in seen]
    assert set(ends) <= {"completed", "interrupted"}
    for stream in seen:
        if stream.one("done")["status"] == "interrupted":
            error = stream.of("error")[-1]  # one whose worker lost its lease was told that before
            assert (error["code"], error["retryable"]) == ("server_shutdown", True)
        else:
            assert stream.text == WORDS * 2
    assert len({stream.run_id for stream in seen}) == len(seen)
    trial.note("turns", len(seen))
    trial.note("interrupted", ends.count("interrupted"))
    await trial.check(*seen, turns=len(seen))
