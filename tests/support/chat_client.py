"""A client of the chat as existing frontends are one: splits on blank lines, reads ``data: `` blocks, may leave."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.seen import Seen
from tests.support.waiting import until

PASSWORD = "correct horse battery"
_names = itertools.count()


class EndOfStream(AssertionError):
    """The stream ended before what was waited for."""


@dataclass
class Stream(Seen):
    """One open event stream. ``raw`` is every byte that came."""

    response: httpx.Response
    raw: bytes = b""
    blocks: list[str] = field(default_factory=list)
    done: bool = False
    """Whether ``[DONE]`` came."""
    _rest: bytes = b""
    _bytes: AsyncIterator[bytes] | None = None

    @property
    def run_id(self) -> str:
        return self.response.headers["x-run-id"]

    @property
    def last_seq(self) -> int:
        return max((event["seq"] for event in self.events), default=0)

    async def _more(self) -> bool:
        if self._bytes is None:
            self._bytes = self.response.aiter_raw()
        piece = await anext(self._bytes, None)
        if piece is None:
            return False
        self.raw += piece
        *blocks, self._rest = (self._rest + piece).split(b"\n\n")
        for block in blocks:
            self._take(block.decode())
        return True

    def _take(self, block: str) -> None:
        assert not self.done, "something after [DONE]"
        self.blocks.append(block)
        data = [line[6:] for line in block.split("\n") if line.startswith("data: ")]
        if data == ["[DONE]"]:
            self.done = True
        elif data:
            self.events.append(json.loads("\n".join(data)))

    async def until(self, holds: "Callable[[Stream], bool]", seconds: float = 60.0) -> "Stream":
        """Read until ``holds``. Raises :class:`EndOfStream`."""
        async with asyncio.timeout(seconds):
            while not holds(self):
                if not await self._more():
                    raise EndOfStream(self.raw[-2000:])
        return self

    async def until_text(self, wanted: str) -> "Stream":
        return await self.until(lambda stream: wanted in stream.text)

    async def until_type(self, kind: str) -> "Stream":
        return await self.until(lambda stream: kind in stream.types)

    async def end(self, seconds: float = 120.0) -> "Stream":
        """Read to the end of the stream, whatever it is."""
        async with asyncio.timeout(seconds):
            while await self._more():
                pass
        return self


@dataclass
class Client:
    """One signed-in user."""

    http: httpx.AsyncClient
    name: str

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.http.get(path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return await self.http.post(path, json=body, **options)

    @asynccontextmanager
    async def stream(
        self, message: str = "How long?", session_id: str = "s", key: str | None = None, **fields: Any
    ) -> AsyncIterator[Stream]:
        """``POST /chat/stream``; leaving the block closes the connection."""
        body = {"message": message, "session_id": session_id, **fields}
        headers = {"Idempotency-Key": key} if key else {}
        async with self.http.stream("POST", "/chat/stream", json=body, headers=headers) as response:
            if response.status_code != 200:
                await response.aread()
            yield Stream(response)

    @asynccontextmanager
    async def follow(self, run_id: str, after: int | None = None, **options: Any) -> AsyncIterator[Stream]:
        """``GET /chat/runs/{run_id}/stream``."""
        params = {} if after is None else {"after": after}
        async with self.http.stream("GET", f"/chat/runs/{run_id}/stream", params=params, **options) as response:
            yield Stream(response)

    async def ask(self, message: str = "How long?", session_id: str = "s", **fields: Any) -> Stream:
        """A whole turn over the stream, its ``[DONE]`` included."""
        async with self.stream(message, session_id, **fields) as stream:
            assert stream.response.status_code == 200, stream.response.text
            await stream.end()
            assert stream.done, stream.raw[-2000:]
            return stream

    async def replay(self, run_id: str, after: int | None = None) -> Stream:
        """A run's stream from its end back, whole."""
        async with self.follow(run_id, after) as stream:
            return await stream.end()

    async def messages(self, session_id: str = "s") -> list[dict[str, Any]]:
        answer = await self.get(f"/sessions/{session_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()["messages"]

    async def run(self, run_id: str) -> dict[str, Any]:
        answer = await self.get(f"/chat/runs/{run_id}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def ended(self, run_id: str, seconds: float = 60.0) -> dict[str, Any]:
        """The run, once it is terminal."""

        async def terminal() -> bool:
            return (await self.run(run_id))["status"] != "running"

        await until(terminal, seconds)
        return await self.run(run_id)

    async def stop(self, run_id: str) -> dict[str, Any]:
        answer = await self.post(f"/chat/runs/{run_id}/stop")
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def signed_in(
    url: str, name: str | None = None, token: str | None = None, *, kept: int | None = None
) -> AsyncIterator[Client]:
    """A new account at ``url``, or the one of ``token``.

    ``kept`` connections stay open between requests, all by default. With 0 no request meets a connection that the
    server closes just then, as it does with those that were idle for seconds: it would not be sent again.
    """
    name = name or f"user{next(_names)}"
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=kept)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        if token is None:
            answer = await http.post("/auth/register", json={"username": name, "password": PASSWORD})
            assert answer.status_code == 200, answer.text
            token = answer.json()["access_token"]
        http.headers["Authorization"] = f"Bearer {token}"
        yield Client(http, name)
