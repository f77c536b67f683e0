"""FaultProxy passes bytes on unless told otherwise."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.fault_proxy import FaultProxy


class Echo:
    """An upstream that answers each piece with the same bytes and remembers them."""

    def __init__(self) -> None:
        self.received = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                self.received += data
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def echo(tmp_path: Path) -> AsyncIterator[Echo]:
    echo = Echo()
    async with await asyncio.start_unix_server(echo.serve, str(tmp_path / "s")):
        yield echo


@pytest.fixture
async def proxy(echo: Echo, tmp_path: Path) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(tmp_path / "s") as proxy:
        yield proxy


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, data: bytes, timeout: float = 10) -> bytes:
        self._writer.write(data)
        return await asyncio.wait_for(self._reader.readexactly(len(data)), timeout)


@asynccontextmanager
async def connected(proxy: FaultProxy) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def test_it_passes_bytes_both_ways(proxy: FaultProxy):
    async with connected(proxy) as client:
        assert await client.ask(b"hello") == b"hello"
        proxy.delay = 0.1
        started = asyncio.get_running_loop().time()
        assert await client.ask(b"again") == b"again"
        assert asyncio.get_running_loop().time() - started >= 0.19


async def test_tcp_upstream(proxy: FaultProxy):
    async with FaultProxy(f"{proxy.host}:{proxy.port}") as outer, connected(outer) as client:
        assert await client.ask(b"hello") == b"hello"


async def test_cut_resets_open_connections_only(proxy: FaultProxy):
    async with connected(proxy) as client:
        await client.ask(b"x")
        proxy.cut()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await client.ask(b"y")
    async with connected(proxy) as client:
        assert await client.ask(b"z") == b"z"


async def test_refuse_and_restore(proxy: FaultProxy):
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        async with connected(proxy):
            pass
    await proxy.restore()
    async with connected(proxy) as client:
        assert await client.ask(b"z") == b"z"


async def test_black_hole_answers_nobody_until_restored(proxy: FaultProxy, echo: Echo):
    async with connected(proxy) as old:
        await old.ask(b"a")
        proxy.blackhole()
        async with connected(proxy) as new:
            for client in (old, new):
                with pytest.raises(TimeoutError):
                    await client.ask(b"b", timeout=0.2)
            assert echo.received == b"a"
            await proxy.restore()
            assert await new.ask(b"") == b""


async def test_bytes_sent_by_the_client_trigger_a_fault_once(proxy: FaultProxy, echo: Echo):
    rule = proxy.on_bytes(b"COMMIT", "cut")
    async with connected(proxy) as client:
        assert await client.ask(b"BEGIN;COM") == b"BEGIN;COM"
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await client.ask(b"MIT;")
    assert (rule.hits, rule.hit.is_set(), echo.received) == (1, True, b"BEGIN;COM")
    async with connected(proxy) as client:
        assert await client.ask(b"COMMIT") == b"COMMIT"


async def test_cut_reply_lets_the_upstream_work(proxy: FaultProxy, echo: Echo):
    proxy.on_bytes(b"COMMIT", "cut_reply")
    async with connected(proxy) as client:
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await client.ask(b"COMMIT")
    assert echo.received == b"COMMIT"


async def test_mute_lets_the_upstream_work_and_tells_nothing(proxy: FaultProxy, echo: Echo):
    proxy.on_bytes(b"COMMIT", "mute")
    async with connected(proxy) as client:
        for sent in (b"COMMIT", b"b"):
            with pytest.raises(TimeoutError):
                await client.ask(sent, timeout=0.2)
        async with connected(proxy) as other:
            assert await other.ask(b"c") == b"c"
    assert echo.received == b"COMMITbc"


async def test_triggered_black_hole_and_delay_touch_one_connection(proxy: FaultProxy):
    proxy.on_bytes(b"hole", "blackhole")
    proxy.on_bytes(b"slow", 0.1)
    async with connected(proxy) as first, connected(proxy) as second:
        with pytest.raises(TimeoutError):
            await first.ask(b"hole", timeout=0.2)
        assert await second.ask(b"slow") == b"slow"
