"""The end of a stream is its last byte."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from sse_starlette import ServerSentEvent

from backend.api.event_stream import EventStream
from backend.protocols.native import DONE

EVENT = b'data: {"seq":1}\n\n'


async def test_no_keep_alive_follows_the_end():
    pings, sent = asyncio.Semaphore(0), list[bytes]()

    def ping() -> ServerSentEvent:
        pings.release()
        return ServerSentEvent(comment="ping", sep="\n")

    async def events() -> AsyncGenerator[bytes]:
        for _ in range(2):
            await pings.acquire()
        yield EVENT
        yield DONE
        for _ in range(3):  # their time comes before the response is over
            await pings.acquire()

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message.get("body", b""))
        if message["type"] == "http.response.body" and not message["more_body"]:
            assert message["body"] == b""

    response = EventStream(events(), ping=0.01, ping_message_factory=ping, sep="\n")  # type: ignore[arg-type]
    async with asyncio.timeout(30):
        await response({"type": "http", "method": "GET"}, receive, send)  # type: ignore[arg-type]
    assert sent[-3:] == [EVENT, DONE, b""] or sent[-2:] == [DONE, b""]
    assert b": ping\n\n" in sent
    assert sent.count(DONE) == 1
