"""A slow answer that is cut off or stopped while it is written."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.cli.conftest import DEADLINE, Cli, messages_of
from tests.support.fake_llm import FakeLLM
from tests.support.fault_proxy import FaultProxy
from tests.support.server import ServerProcess

MakeCli = Callable[[str], Cli]


@pytest.fixture
async def provider() -> AsyncIterator[FakeLLM]:
    """A model that writes a word every tenth of a second, for as long as is needed."""
    async with FakeLLM(token_delay=0.1, tokens=60) as provider:
        yield provider


@pytest.fixture
async def slow_server(
    data_dir: Path, database_url: URL, redis_url: str, provider: FakeLLM
) -> AsyncIterator[ServerProcess]:
    env = {"LLM_BASE_URL": provider.base_url, "LLM_MODEL": "fake", "LLM_API_KEY": "none"}
    async with ServerProcess(data_dir, database_url=database_url, redis_url=redis_url, env=env) as server:
        yield server


async def read_until(stream: asyncio.StreamReader, enough: Callable[[str], bool]) -> str:
    """What came until it was ``enough``."""
    seen = b""
    async with asyncio.timeout(DEADLINE):
        while not enough(seen.decode(errors="ignore")):
            piece = await stream.read(4096)
            assert piece, seen
            seen += piece
    return seen.decode()


def begun(shown: str) -> bool:
    """Whether words of the answer have come: more on the last line than a step has."""
    return len(shown.rpartition("\n")[2].split()) > 3


async def test_an_answer_goes_on_after_the_connection_was_cut(
    slow_server: ServerProcess, make_cli: MakeCli, provider: FakeLLM
) -> None:
    async with FaultProxy(("127.0.0.1", slow_server.port)) as proxy:
        cli = make_cli(f"http://127.0.0.1:{proxy.port}")
        await asyncio.to_thread(cli.register, "ada")
        process = await cli.start("ask", "--session", "s1", "Who keeps the lighthouse?")
        assert process.stdout is not None
        shown = await read_until(process.stdout, begun)
        resumed, repeated = proxy.on_bytes(b"/stream?after=", 0.0), proxy.on_bytes(b"/stream?after=0 ", 0.0)
        proxy.cut()
        rest, complaints = await asyncio.wait_for(process.communicate(), DEADLINE)
    shown += rest.decode()
    assert process.returncode == 0, complaints
    assert (resumed.hits, repeated.hits) == (1, 0)
    assert complaints.decode() == "connection lost, resumed\n"
    human, ai = await messages_of(slow_server, cli.token, "s1")
    assert human["content"] == "Who keeps the lighthouse?"
    assert ai["status"] == "completed"
    assert len(ai["content"].split()) > 30
    assert shown.count(ai["content"]) == 1
    assert shown.count("Question received") == 1


async def test_an_answer_goes_on_while_the_server_cannot_be_reached(
    slow_server: ServerProcess, make_cli: MakeCli
) -> None:
    async with FaultProxy(("127.0.0.1", slow_server.port)) as proxy:
        cli = make_cli(f"http://127.0.0.1:{proxy.port}")
        await asyncio.to_thread(cli.register, "ada")
        process = await cli.start("ask", "--session", "s1", "Who keeps the lighthouse?")
        assert process.stdout is not None
        shown = await read_until(process.stdout, begun)
        proxy.refuse()
        await asyncio.sleep(1)
        await proxy.restore()
        rest, complaints = await asyncio.wait_for(process.communicate(), DEADLINE)
    assert process.returncode == 0, complaints
    ai = (await messages_of(slow_server, cli.token, "s1"))[1]
    assert (shown + rest.decode()).count(ai["content"]) == 1


async def test_a_killed_server_ends_the_answer_with_one_line(slow_server: ServerProcess, make_cli: MakeCli) -> None:
    cli = make_cli(slow_server.url)
    await asyncio.to_thread(cli.register, "ada")
    process = await cli.start("ask", "--session", "s1", "Who keeps the lighthouse?")
    assert process.stdout is not None
    await read_until(process.stdout, begun)
    await slow_server.kill9()
    await slow_server.restart()
    _, complaints = await asyncio.wait_for(process.communicate(), DEADLINE)
    assert process.returncode == 1
    *_, last = complaints.decode().splitlines()
    assert last.startswith("citewire: ")
    assert last.endswith("(server_shutdown)")
    assert (await messages_of(slow_server, cli.token, "s1"))[1]["status"] == "interrupted"


async def test_ctrl_c_stops_the_answer_and_keeps_what_is_there(
    slow_server: ServerProcess, make_cli: MakeCli, provider: FakeLLM
) -> None:
    provider.tokens = 5_000
    cli = make_cli(slow_server.url)
    await asyncio.to_thread(cli.register, "ada")
    process = await cli.start("ask", "--session", "s1", "Who keeps the lighthouse?")
    assert process.stdout is not None
    shown = await read_until(process.stdout, begun)
    process.send_signal(signal.SIGINT)
    rest, complaints = await asyncio.wait_for(process.communicate(), DEADLINE)
    shown += rest.decode()
    assert process.returncode == 130
    assert complaints.decode() == "stopping …\ncitewire: stopped\n"
    ai = (await messages_of(slow_server, cli.token, "s1"))[1]
    assert ai["status"] == "stopped"
    assert ai["content"]
    assert ai["content"] in shown
    assert "Session s1" in shown


async def test_a_provider_that_refuses_is_one_line_with_its_code(
    data_dir: Path, database_url: URL, redis_url: str, make_cli: MakeCli
) -> None:
    env = {"LLM_BASE_URL": "http://127.0.0.1:1/v1", "LLM_MODEL": "fake"}
    async with ServerProcess(data_dir, database_url=database_url, redis_url=redis_url, env=env) as server:
        cli = make_cli(server.url)
        await asyncio.to_thread(cli.register, "ada")
        done = await asyncio.to_thread(cli.run, "ask", "Who keeps the lighthouse?")
    assert done.returncode == 1
    assert done.stderr.startswith("citewire: ")
    assert done.stderr.endswith("(provider_unavailable)\n")
    assert done.stderr.count("\n") == 1
