"""An answer that is lost on its way is asked for again, by everything that retries: it stays one turn."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.chaos.rig import WORDS, Trial
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import text
from tests.support.fault_proxy import FaultProxy

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.race]
MESSAGE = "How long is the warranty?"
WAYS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "with the key header": ({}, {"Idempotency-Key": "k"}),
    "byte for byte, without the header": ({"client_message_id": "k"}, {}),
}
"""What the body and the headers of each request hold beside the message."""


async def lose_the_answer(trial: Trial, client: Client, path: str, request: dict[str, Any]) -> None:
    """Ask, on a connection that breaks as the answer comes: the turn is accepted, and the client does not know."""
    async with FaultProxy(("127.0.0.1", trial.owner.port)) as proxy:
        proxy.on_bytes(MESSAGE.encode(), "cut_reply")
        async with httpx.AsyncClient(base_url=f"http://{proxy.host}:{proxy.port}", timeout=60) as http:
            with pytest.raises(httpx.TransportError):
                await http.post(path, headers={**client.http.headers, **request["headers"]}, json=request["json"])


@pytest.mark.parametrize("way", WAYS)
async def test_lost_answers(trial: Trial, alice: tuple[Client, Client], way: str):
    """An answer is lost, then 30 retries at once on both workers"""
    here, there = alice
    more, headers = WAYS[way]
    body = {"message": MESSAGE, "session_id": "s", **more}
    trial.at.llm.script(text(WORDS, delay=trial.random.uniform(0, 0.05)))
    path = trial.random.choice(["/chat", "/chat/stream"])
    await lose_the_answer(trial, here, path, {"json": body, "headers": headers})

    async def awaited(client: Client) -> tuple[str, str]:
        answer = await client.post("/chat", body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()["run_id"], answer.json()["response"]

    async def streamed(client: Client) -> Stream:
        async with client.http.stream("POST", "/chat/stream", json=body, headers=headers) as response:
            assert response.status_code == 200
            return await Stream(response).end()

    count = trial.size(15, 5)
    clients = trial.random.choices([here, there], k=2 * count)
    answers, streams = await asyncio.gather(
        asyncio.gather(*(awaited(client) for client in clients[:count])),
        asyncio.gather(*(streamed(client) for client in clients[count:])),
    )
    assert len({*answers, *((stream.run_id, stream.text) for stream in streams)}) == 1
    assert answers[0][1] == WORDS
    for stream in streams:
        assert (stream.done, stream.events) == (True, streams[0].events)
    assert [item["content"] for item in await there.messages()] == [MESSAGE, WORDS]
    assert len(trial.at.llm.chats) == 1
    await trial.check(*streams, turns=1)
