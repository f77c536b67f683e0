"""FakeLLM: an OpenAI-compatible server that plays a script, byte by byte, over real HTTP on loopback.

    async with FakeLLM() as llm:
        llm.script(tool_call("search_knowledge_base", {"query": "..."}), text("Seventeen [1]."))
        ...  # call llm.base_url
        assert llm.violations == []

Without a script it plays a sensible retrieval model. ``python -m tests.support.fake_llm`` runs it as a process.
"""

import argparse
import asyncio
import contextlib
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from tests.support.fake_llm_checks import context_length_exceeded, embedding, images_of, tokens_asked, violations_of
from tests.support.fake_llm_rag import Decision, decided, decision_of, decision_reply, rag_reply
from tests.support.fake_llm_replies import (
    Action,
    Reply,
    Request,
    Step,
    chunks,
    close_after,
    hang_after,
    json_reply,
    raw,
    reset_after,
    status,
    text,
    tool_call,
    tool_calls,
    wait,
    wire,
)
from tests.support.sockets import reset
from tests.support.waiting import ended

__all__ = [
    "Action",
    "FakeLLM",
    "Reply",
    "Request",
    "chunks",
    "close_after",
    "decided",
    "hang_after",
    "json_reply",
    "raw",
    "reset_after",
    "status",
    "text",
    "tool_call",
    "tool_calls",
    "wait",
    "wire",
]


@dataclass
class FakeLLM:
    """``default`` answers what no script answers: a ``Reply``, or a function from the request to one.

    ``strict``: a malformed request gets 400 and is recorded in ``violations``. ``token_delay`` (seconds) and
    ``tokens`` (length of an answer) shape the default model. With ``window`` a chat request that asks for more tokens,
    those of its answer too, is refused as providers refuse it, and counted in ``too_long``.
    """

    port: int = 0
    strict: bool = True
    token_delay: float = 0.0
    tokens: int | None = None
    window: int | None = None
    too_long: int = 0
    requests: list[Request] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    default: Reply | Callable[[Request], Reply] | None = None

    def __post_init__(self) -> None:
        self._scripts: defaultdict[str | None, deque[Reply]] = defaultdict(deque)
        self._decisions: defaultdict[Decision, deque[Reply]] = defaultdict(deque)
        self._connections: set[_Connection] = set()
        self.accepted = 0
        """How many connections were opened so far."""
        self._server: asyncio.Server | None = None
        self._arrived = asyncio.Event()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def chats(self) -> list[Request]:
        """The chat completion requests so far, without those for decisions and notes."""
        return [request for request in self._completions if decision_of(request) is None]

    @property
    def images(self) -> list[int]:
        """How many images each of :attr:`chats` held."""
        return [images_of(request.messages) for request in self.chats]

    def decisions(self, decision: Decision) -> list[Request]:
        """The requests for that decision so far."""
        return [request for request in self._completions if decision_of(request) == decision]

    @property
    def _completions(self) -> list[Request]:
        return [request for request in self.requests if request.path.endswith("/chat/completions")]

    async def wait_for_chats(self, count: int, timeout: float = 30.0) -> None:
        """Returns once ``count`` chat requests have come. Raises ``TimeoutError``."""
        async with asyncio.timeout(timeout):
            while len(self.chats) < count:
                self._arrived.clear()
                await self._arrived.wait()

    def script(self, *responses: Reply, model: str | None = None) -> None:
        """Queues answers for the next chat requests, one each; with ``model`` only for requests to that model."""
        self._scripts[model].extend(responses)

    def decide(self, decision: Decision, *replies: Reply) -> None:
        """Queues answers for the next requests for that decision; scripts and ``default`` do not answer these."""
        self._decisions[decision].extend(replies)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = [task for connection in self._connections if (task := connection.stop())]
        await ended(tasks)
        await asyncio.sleep(0)  # lets the transports close their sockets

    def reply_to(self, request: Request) -> Reply:
        """What this request gets; records it."""
        self.requests.append(request)
        self._arrived.set()
        if request.method == "GET" and request.path.endswith("/models"):
            return json_reply({"object": "list", "data": [{"id": "fake", "object": "model"}]})
        if self.strict and (problems := violations_of(request)):
            self.violations.extend(problems)
            return status(400, {"error": {"message": "; ".join(problems), "type": "invalid_request_error"}})
        if request.path.endswith("/embeddings"):
            return json_reply(embedding(request.body))
        if not request.path.endswith("/chat/completions"):
            return status(404, {"error": {"message": "no such route", "type": "invalid_request_error"}})
        if self.window is not None and (asked := tokens_asked(request.body)) > self.window:
            self.too_long += 1
            return status(400, context_length_exceeded(self.window, asked))
        if (decision := decision_of(request)) is not None:
            queue = self._decisions[decision]
            return queue.popleft() if queue else decision_reply(decision, request)
        for queue in (self._scripts[request.body.get("model")], self._scripts[None]):
            if queue:
                return queue.popleft()
        if self.default is not None:
            return self.default if isinstance(self.default, Reply) else self.default(request)
        return rag_reply(request, delay=self.token_delay, tokens=self.tokens)


class _Connection(asyncio.Protocol):
    """One client connection: requests one after the other, each answered by its steps."""

    def __init__(self, owner: FakeLLM) -> None:
        self._owner = owner
        self._buffer = b""
        self._more = asyncio.Event()
        self._lost = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._owner._connections.add(self)
        self._owner.accepted += 1
        self._task = asyncio.get_running_loop().create_task(self._serve(transport))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()
        self._more.set()
        self._writable.set()
        self._owner._connections.discard(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def stop(self) -> "asyncio.Task[None] | None":
        """Ends the connection; returns the task to wait for."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _serve(self, transport: asyncio.Transport) -> None:
        while (request := await self._request()) is not None:
            steps = self._owner.reply_to(request).steps(request)
            await self._play(transport, request, steps)
            request.ended.set()
            if self._lost.is_set() or transport.is_closing():
                return
        transport.close()

    async def _play(self, transport: asyncio.Transport, request: Request, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, bytes):
                transport.write(step)
                request.sent += 1
                await self._writable.wait()
                await asyncio.sleep(0)
            elif isinstance(step, float | int):
                await self._pause(step)
            elif isinstance(step, asyncio.Event):
                await step.wait()
            elif step is Action.HANG:
                await self._lost.wait()
            elif step is Action.RESET:
                await self._pause(0.05)  # what was sent arrives before the reset
                reset(transport)
                return
            else:
                transport.close()
                return
            if self._lost.is_set():
                request.closed_by_client = True
                return

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._lost.wait(), seconds)
        except TimeoutError:
            return

    async def _request(self) -> Request | None:
        """The next request, or None once the client left."""
        while b"\r\n\r\n" not in self._buffer:
            if not await self._wait_for_data():
                return None
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(self._buffer) < length:
            if not await self._wait_for_data():
                return None
        payload, self._buffer = self._buffer[:length], self._buffer[length:]
        method, path, _ = first.split(" ", 2)
        return Request(method, path.partition("?")[0], headers, payload, _json(payload), time.monotonic())

    async def _wait_for_data(self) -> bool:
        self._more.clear()
        if self._lost.is_set():
            return False
        await self._more.wait()
        return True


def _json(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        return None


async def _main(arguments: argparse.Namespace) -> None:
    fake = FakeLLM(port=arguments.port, token_delay=arguments.token_delay, tokens=arguments.tokens)
    async with fake:
        print(fake.base_url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A fake OpenAI-compatible model server on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token-delay", type=float, default=0.0, help="seconds between tokens")
    parser.add_argument("--tokens", type=int, default=None, help="tokens of each answer")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(parser.parse_args()))
