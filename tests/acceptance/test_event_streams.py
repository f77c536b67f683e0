"""Event streams of a real server: what each says to proxies, and what of a reader stays who leaves or stands still."""

import asyncio
import random
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing

import httpx
import psutil
import pytest
import pytest_asyncio
from pydantic import SecretStr
from sqlalchemy import URL
from starlette.middleware.base import BaseHTTPMiddleware

from backend.app import create_app
from backend.settings import Settings
from tests.acceptance.metrics import metric
from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import hang_after, text, wait
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
WORDS = "one two three four five six seven eight nine ten "
MEGABYTE = 1024 * 1024
READERS, EVENTS = 50, 10_000
PIECE = "x" * 1_000
STARTS = b"HTTP/1.1 200 OK"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["true", "false"], ids=["memory", "table"])
async def shared(
    request: pytest.FixtureRequest, postgres_url: URL, valkey_url: str, worker_id: str
) -> AsyncIterator[Rack]:
    env = {"EVENT_MEMORY_LOG": request.param, "SUBSCRIBER_MAX_EVENTS": "100", "SEND_TIMEOUT_SECONDS": "2"}
    async with rack(postgres_url, valkey_url, f"streams_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await shared.reset()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


def event_stream_routes(openapi: dict[str, dict[str, dict[str, dict[str, dict[str, dict[str, object]]]]]]) -> set[str]:
    """Every ``METHOD path`` that is said to answer with an event stream."""
    return {
        f"{method.upper()} {path}"
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
        if "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
    }


def asking(client: Client, run_id: str) -> dict[str, AbstractAsyncContextManager[Stream]]:
    """Each route with an event stream, and how to open it."""
    return {
        "POST /chat/stream": client.stream(session_id="other"),
        "GET /chat/runs/{run_id}/stream": client.follow(run_id),
    }


JOBS = "GET /documents/jobs/stream"


async def test_a01_the_stream_of_jobs_tells_a_proxy_to_hold_nothing(alice: Client):
    async with alice.http.stream("GET", JOBS.removeprefix("GET ")) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["cache-control"] == "no-cache, no-transform"


@pytest.mark.parametrize("route", ["POST /chat/stream", "GET /chat/runs/{run_id}/stream"])
async def test_a01_every_event_stream_tells_a_proxy_to_hold_nothing(at: Rack, alice: Client, route: str):
    document = (await alice.get("/openapi.json")).json()
    assert event_stream_routes(document) == {*asking(alice, ""), JOBS}, "a new stream belongs into this test"
    at.llm.script(hang_after(1), hang_after(1))
    async with alice.stream() as live, asking(alice, live.run_id)[route] as stream:
        await stream.until_type("content")  # and the model is silent from there on
        headers = stream.response.headers
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["x-accel-buffering"] == "no"
        assert headers["cache-control"] == "no-cache, no-transform"
        for run_id in {live.run_id, stream.run_id}:
            await alice.stop(run_id)
        await stream.end()
    assert stream.done


# --- leaving ---


async def subscribers(at: Rack) -> float:
    return await metric(at.server.url, "stream_subscribers")


async def gone(at: Rack) -> bool:
    return await subscribers(at) == 0


async def test_a05_a_closed_socket_releases_its_subscriber_and_the_run_goes_on(at: Rack, alice: Client):
    at.llm.script(hang_after(4))
    async with alice.stream() as stream:
        await stream.until(lambda got: len(got.events) >= 3)
        assert await subscribers(at) == 1
    await until(lambda: gone(at))
    assert await metric(at.server.url, "active_runs") == 1
    assert (await alice.run(stream.run_id))["status"] == "running"
    async with alice.follow(stream.run_id) as back:
        await back.until_text("four")
        await alice.stop(stream.run_id)
        await back.end()
    await until(lambda: gone(at))
    await at.check(stream, back, turns=1)


async def test_a05_no_middleware_hides_that_a_client_left(at: Rack):
    given: dict[str, object] = {"data_dir": "unused", "jwt_secret_key": SecretStr("q" * 64)}
    app = create_app(Settings(_env_file=None, **given))  # type: ignore[arg-type]
    assert app.user_middleware
    for middleware in app.user_middleware:
        assert not (isinstance(middleware.cls, type) and issubclass(middleware.cls, BaseHTTPMiddleware))


async def test_a06_two_hundred_clients_that_leave_anywhere_leave_nothing(at: Rack, alice: Client):
    at.llm.default = text(WORDS, delay=0.02)
    moments = random.Random(6)
    server = psutil.Process(at.server.pid)

    async def leave(number: int) -> None:
        """Before the headers, among the steps, at a token, or in the silence after it."""
        fewest = moments.randrange(0, 15)
        try:
            async with asyncio.timeout(moments.uniform(0, 0.05) if number % 4 == 0 else 60):
                async with alice.stream(session_id=f"s{number}") as stream:
                    await stream.until(lambda got: len(got.events) >= fewest or got.done)
                    await asyncio.sleep(moments.uniform(0, 0.02))
        except TimeoutError:
            return

    async def quiet() -> bool:
        return await gone(at) and await metric(at.server.url, "active_runs") == 0

    async def cycles(first: int, count: int) -> None:
        for start in range(first, first + count, 20):
            await asyncio.gather(*(leave(number) for number in range(start, start + 20)))
        await until(quiet)

    await cycles(0, 100)  # what is made once is made
    before = (server.memory_info().rss, server.num_fds())
    await cycles(100, 100)
    await alice.http.aclose()
    assert server.memory_info().rss - before[0] < 50 * MEGABYTE
    assert server.num_fds() - before[1] < 20
    await at.check()


# --- standing still ---


async def stalled(client: Client, run_id: str) -> socket.socket:
    """A reader of the run that has read that its stream began, and reads nothing more."""
    url = httpx.URL(str(client.http.base_url))
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(reader, (url.host, url.port))
    head = (
        f"GET /chat/runs/{run_id}/stream HTTP/1.1\r\nHost: x\r\nAuthorization: {client.http.headers['authorization']}"
    )
    await loop.sock_sendall(reader, f"{head}\r\n\r\n".encode())
    assert await loop.sock_recv(reader, len(STARTS)) == STARTS
    return reader


async def rest_of(reader: socket.socket) -> bytes:
    """All that had come to the reader before it was cut."""
    found = bytearray()
    try:
        while piece := await asyncio.get_running_loop().sock_recv(reader, 1 << 20):
            found += piece
    except ConnectionResetError:
        pass
    return bytes(found)


async def test_a11_readers_that_stand_still_are_cut_and_come_back_with_their_cursor(at: Rack, alice: Client):
    server = psutil.Process(at.server.pid)
    at.llm.script(wait(3, text("", tokens=[PIECE] * EVENTS)), text("Meanwhile."))
    before = server.memory_info().rss
    async with AsyncExitStack() as stack:
        async with alice.stream() as stream:
            await stream.until_type("run_started")
            await at.llm.wait_for_chats(1)
        run_id = stream.run_id
        readers = [stack.enter_context(closing(await stalled(alice, run_id))) for _ in range(READERS)]
        assert (await alice.ask(session_id="other")).text == "Meanwhile.", "nobody else is held up"
        assert (await alice.ended(run_id))["status"] == "completed"
        await until(lambda: gone(at))
        assert server.memory_info().rss - before < 350 * MEGABYTE, "ten megabytes for each reader would be 500"
        whole = await alice.replay(run_id)
        assert (whole.text, whole.done) == (EVENTS * PIECE, True)
        for reader in readers[:3]:
            seen = await rest_of(reader)
            assert b'"type":"done"' not in seen
            assert b"[DONE]" not in seen
            cursor = max(int(number) for number in re.findall(rb"id: (\d+)\ndata: [^\n]*\n\n", seen))
            back = await alice.replay(run_id, cursor)
            assert back.events == whole.events[cursor:]
            assert back.done
    await at.check(whole, turns=2)
