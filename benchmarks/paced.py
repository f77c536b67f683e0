"""Many streams at once, read by as little code as there can be: the reader must not be what is measured."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

from benchmarks.harness import Target

END_SECONDS = 300.0


@dataclass
class Paced(asyncio.Protocol):
    """One POST on a connection of its own; ``seen`` has the time of each piece that came, ``failed`` why it did not."""

    request: bytes
    mark: bytes
    seen: list[float] = field(default_factory=list[float])
    failed: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _tail: bytes = b""
    _transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        data = self._tail + data
        at = data.rfind(b"\n") + 1
        lines, self._tail = data[:at], data[at:]
        self.seen += [now] * lines.count(self.mark)
        if b"data: [DONE]" in lines:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.is_set():
            self.failed = f"no end: {self._tail[-200:]!r}"
            self._end()

    def _end(self) -> None:
        self.ended.set()
        if self._transport is not None:
            self._transport.close()

    @classmethod
    def of(cls, target: Target, session: str) -> Self:
        """A question of the target in a session of its own."""
        return cls(_post(target.path, target.headers, target.body(session, "Say something long.")), b'"type":"content"')

    @classmethod
    def of_model(cls, model_url: str) -> Self:
        """A request to the provider itself."""
        body = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "Say something long."}]}
        return cls(_post(f"{urlsplit(model_url).path}/chat/completions", {}, body), b'"content": "word')

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces."""
        return [later - earlier for earlier, later in zip(self.seen, self.seen[1:], strict=False)]


def _post(path: str, headers: dict[str, str], body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    fields = {"Host": "bench", "Content-Type": "application/json", "Content-Length": str(len(content)), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content


async def read_all(url: str, streams: list[Paced], spread_seconds: float) -> None:
    """Open the streams, spread evenly over that time, and read each to its end."""
    parts, loop = urlsplit(url), asyncio.get_running_loop()

    async def one(number: int, stream: Paced) -> None:
        await asyncio.sleep(spread_seconds * number / len(streams))
        await loop.create_connection(lambda: stream, parts.hostname, parts.port)
        await stream.ended.wait()

    async with asyncio.timeout(END_SECONDS):
        await asyncio.gather(*(one(number, stream) for number, stream in enumerate(streams)))
