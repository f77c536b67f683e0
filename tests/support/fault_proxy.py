"""FaultProxy: a TCP proxy that delays, cuts, swallows or refuses, on command or when certain bytes are sent.

async with FaultProxy("127.0.0.1:5432") as proxy:   # or ("host", port), or the Path of a unix socket
    rule = proxy.on_bytes(b"COMMIT", "cut")
    ...  # connect to proxy.host, proxy.port
    proxy.blackhole(); ...; proxy.restore()
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from tests.support.sockets import reset
from tests.support.waiting import ended

Upstream = str | tuple[str, int] | Path
Fault = Literal["cut", "cut_reply", "blackhole", "mute"] | float


@dataclass
class Rule:
    """What happens when the client sends ``pattern``; ``times`` it still applies (None: always), ``hits`` so far.

    ``cut``: RST before the upstream sees the bytes. ``cut_reply``: the upstream gets them, its answer is lost in an
    RST. ``blackhole``: this connection says nothing more. ``mute``: the upstream gets them, and nothing comes back on
    this connection. A number: seconds to wait before the bytes go on.
    """

    pattern: bytes
    action: Fault
    times: int | None = 1
    hits: int = 0
    hit: asyncio.Event = field(default_factory=asyncio.Event)

    def applies(self, data: bytes) -> bool:
        if self.pattern not in data or (self.times is not None and self.hits >= self.times):
            return False
        self.hits += 1
        self.hit.set()
        return True


class FaultProxy:
    """``delay`` (seconds) is added to each piece in both directions. All modes end with :meth:`restore`."""

    host = "127.0.0.1"

    def __init__(self, upstream: Upstream) -> None:
        self.port = 0
        self.delay = 0.0
        self.rules: list[Rule] = []
        self.accepted = 0
        self._upstream = upstream
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._stop_listening()
        tasks = [link.task for link in self._links]
        self.cut()
        await ended(tasks)
        await asyncio.sleep(0)

    def cut(self) -> None:
        """RST on every connection there is; new ones work."""
        for link in list(self._links):
            link.cut()

    def blackhole(self) -> None:
        """Connections are accepted and nothing passes, on open ones neither, until :meth:`restore`."""
        self._open.clear()

    def refuse(self) -> None:
        """RST on every connection, and new ones are refused, until :meth:`restore`."""
        self._stop_listening()
        self.cut()

    async def restore(self) -> None:
        """Back to a plain proxy on the same port; what a black hole held passes now."""
        self.delay = 0.0
        self.rules.clear()
        self._open.set()
        if self._server is None:
            await self._listen()

    def on_bytes(self, pattern: bytes, action: Fault, *, times: int | None = 1) -> Rule:
        """Does ``action`` when a client sends ``pattern``, also when it comes in pieces; see :class:`Rule`."""
        rule = Rule(pattern, action, times)
        self.rules.append(rule)
        return rule

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        link = _Link(self, task, [writer])
        self._links.add(link)
        try:
            await self._open.wait()
            upstream_reader, upstream_writer = await self._connect()
            link.writers.append(upstream_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(link.to_upstream(reader, upstream_writer))
                group.create_task(link.to_client(upstream_reader, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            link.close()
            self._links.discard(link)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._upstream, Path):
            return await asyncio.open_unix_connection(str(self._upstream))
        if isinstance(self._upstream, str):
            host, _, port = self._upstream.rpartition(":")
            return await asyncio.open_connection(host, int(port))
        return await asyncio.open_connection(*self._upstream)

    async def pass_on(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        """Sends ``data`` on, as slow as the mode says."""
        if self.delay:
            await asyncio.sleep(self.delay)
        await self._open.wait()
        writer.write(data)
        await writer.drain()


class _Link:
    """One client connection and its upstream connection."""

    def __init__(self, proxy: FaultProxy, task: asyncio.Task[None], writers: list[asyncio.StreamWriter]) -> None:
        self.task = task
        self.writers = writers
        self._proxy = proxy
        self._lose_reply = False
        self._mute = False

    def cut(self) -> None:
        for writer in self.writers:
            reset(writer.transport)
        self.task.cancel()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    async def to_upstream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tail = b""
        while data := await reader.read(65536):
            for rule in self._proxy.rules:
                keep = len(rule.pattern) - 1
                if rule.applies(tail[-keep:] + data if keep else data):
                    await self._fault(rule.action, reader)
            longest = max((len(rule.pattern) for rule in self._proxy.rules), default=0)
            tail = (tail + data)[-longest:] if longest else b""
            await self._proxy.pass_on(data, writer)
        writer.write_eof()

    async def to_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self._lose_reply:
                self.cut()
            if not self._mute:
                await self._proxy.pass_on(data, writer)
        writer.write_eof()

    async def _fault(self, action: Fault, reader: asyncio.StreamReader) -> None:
        if action == "cut":
            self.cut()
            await asyncio.sleep(0)
        elif action == "cut_reply":
            self._lose_reply = True
        elif action == "mute":
            self._mute = True
        elif action == "blackhole":
            while await reader.read(65536):
                pass
            self.cut()  # the client has left
            await asyncio.sleep(0)
        else:
            await asyncio.sleep(action)
