"""FakeReranker: a rerank service over real HTTP on loopback that scores by a rule or plays a script.

async with FakeReranker(scores={"b1": 0.9}) as service:
    ...  # RERANK_BASE_URL=service.base_url
    assert service.requests[0].body["top_n"] == 2
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from tests.support.waiting import ended

Answer = tuple[int, Any]
"""Status and body; a body that is ``bytes`` goes as it is."""


@dataclass
class RerankRequest:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class FakeReranker:
    """``shape``: which body it understands; another is refused as such servers do.

    ``scores`` are the scores of texts (0 for any other). ``answer``, when set, answers each request instead:
    a function from the request to status and body, or None for an answer that never comes.
    """

    shape: Literal["jina", "tei"] = "jina"
    scores: Mapping[str, float] = field(default_factory=dict)
    answer: Callable[[RerankRequest], Answer | None] | None = None
    requests: list[RerankRequest] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await ended(list(self._tasks))
        await asyncio.sleep(0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await _read(reader)
                self.requests.append(request)
                answer = self.answer(request) if self.answer else self._score(request)
                if answer is None:
                    await asyncio.Event().wait()
                    return
                status, body = answer
                payload = body if isinstance(body, bytes) else json.dumps(body).encode()
                head = (
                    f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
                )
                writer.write(head.encode() + payload)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    def _score(self, request: RerankRequest) -> Answer:
        body = request.body
        if self.shape == "tei":
            if request.path != "/rerank":
                return 404, {}
            if "texts" not in body:
                return 422, {"error": "missing field `texts`"}
            ranked = self._ranked(body["texts"])
            return 200, [{"index": index, "score": score} for index, score in ranked]
        if request.path not in {"/v1/rerank", "/rerank"}:
            return 404, {}
        if "documents" not in body:
            return 422, {"detail": "documents is missing"}
        ranked = self._ranked(body["documents"])[: body["top_n"]]
        return 200, {"results": [{"index": index, "relevance_score": score} for index, score in ranked]}

    def _ranked(self, texts: list[str]) -> list[tuple[int, float]]:
        scored = [(index, self.scores.get(text, 0.0)) for index, text in enumerate(texts)]
        return sorted(scored, key=lambda item: -item[1])


async def _read(reader: asyncio.StreamReader) -> RerankRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers["content-length"]))
    return RerankRequest(first.split(" ")[1], headers, json.loads(body))
