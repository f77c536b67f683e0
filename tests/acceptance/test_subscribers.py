"""Clients that leave, seen from inside the server: nothing of them stays, and their turns go on."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import URL

from backend.api.deps import Services
from backend.api.router import api_router, install
from backend.app import services
from backend.settings import Settings
from tests.support.chat_client import Client, signed_in
from tests.support.fake_llm import FakeLLM, hang_after, text
from tests.support.invariants import check_invariants
from tests.support.waiting import until

WORDS = "one two three four five six seven eight nine ten "


@dataclass
class Inside:
    """A served application whose parts the test can see."""

    services: Services
    client: Client
    llm: FakeLLM

    @property
    def subscribers(self) -> int:
        return self.services.chat.subscriptions.count

    def connections(self) -> int:
        return self.services.engine.pool.checkedout()  # type: ignore[attr-defined]


@asynccontextmanager
async def _served(settings: Settings) -> AsyncIterator[tuple[Services, str]]:
    """The production middlewares and routes on a real socket."""
    built: list[Services] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Services]]:
        async with services(settings) as made:
            built.append(made)
            yield {"services": made}

    app = FastAPI(lifespan=lifespan)
    app.include_router(api_router())
    install(app, settings, max_upload_bytes=settings.max_upload_bytes)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="on"))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started or task.done())
    yield built[0], f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task


@pytest.fixture(params=[True, False], ids=["memory", "table"])
async def inside(
    request: pytest.FixtureRequest, database_url: URL, redis_url: str, data_dir: Path
) -> AsyncIterator[Inside]:
    async with FakeLLM() as llm:
        settings = Settings(
            _env_file=None,  # type: ignore[call-arg]
            data_dir=data_dir,
            database_url=SecretStr(database_url.render_as_string(hide_password=False)),
            redis_url=SecretStr(redis_url),
            jwt_secret_key=SecretStr("f3Vq9Zx2Lr7Tn5Wk8Yb1Hs6Jd4Gm0Pc-inside"),
            llm_base_url=llm.base_url,
            llm_model="fake",
            max_runs_per_user=1000,
            chat_rate_per_minute=0,
            event_memory_log=request.param,
        )
        async with _served(settings) as (built, url), signed_in(url) as client:
            yield Inside(built, client, llm)


async def test_a05_a_closed_socket_releases_its_subscriber_and_not_the_run(inside: Inside, database_url: URL):
    inside.llm.script(text(WORDS, delay=0.1))
    async with inside.client.stream() as stream:
        await stream.until(lambda got: len(got.events) >= 3)
        assert inside.subscribers == 1
    await until(lambda: inside.subscribers == 0)
    assert inside.services.chat.active_runs == 1
    run = await inside.client.ended(stream.run_id)
    assert run["status"] == "completed"
    assert (await inside.client.messages())[-1]["content"] == WORDS
    await check_invariants(database_url, None, stream, turns=1)


async def test_a05_silence_does_not_hide_that_a_client_left(inside: Inside):
    inside.llm.script(hang_after(1))
    async with inside.client.stream() as stream, inside.client.follow(stream.run_id) as second:
        await stream.until_text("one")
        await second.until_text("one")
        assert inside.subscribers == 2
    await until(lambda: inside.subscribers == 0)
    await inside.client.stop(stream.run_id)


async def test_a06_clients_that_leave_anywhere_leave_nothing_behind(inside: Inside, database_url: URL):
    inside.llm.default = text(WORDS, delay=0.02)
    first = await inside.client.ask(session_id="first")  # what is made once is made
    moments = random.Random(6)
    await until(lambda: quiet(inside))
    before = names()

    async def leave(number: int) -> None:
        fewest = moments.randrange(0, 18)
        async with inside.client.stream(session_id=f"s{number}") as stream:
            await stream.until(lambda got: len(got.events) >= fewest or got.done)
            await asyncio.sleep(moments.uniform(0, 0.02))

    async def leave_at_once(number: int) -> None:
        try:
            async with asyncio.timeout(moments.uniform(0, 0.03)):
                await leave(number)
        except TimeoutError:
            return

    for batch in range(3):
        numbers = range(batch * 20, batch * 20 + 20)
        await asyncio.gather(*((leave_at_once if number % 4 == 0 else leave)(number) for number in numbers))
    await until(lambda: inside.services.chat.active_runs == 0)
    await until(lambda: quiet(inside))
    await until(lambda: len(names()) <= len(before))
    assert inside.connections() == 0
    await check_invariants(database_url, None, first)
    for session in (await inside.client.get("/sessions", params={"limit": 200})).json()["sessions"]:
        answer = (await inside.client.messages(session["session_id"]))[-1]
        assert (answer["status"], answer["content"]) == ("completed", WORDS)


def quiet(inside: Inside) -> bool:
    return inside.subscribers == 0 and inside.connections() == 0


def names() -> list[str]:
    """The tasks there are, without those of the client's and the model's connections."""
    coroutines = [str(task.get_coro()) for task in asyncio.all_tasks()]
    return [name for name in coroutines if "_Connection._serve" not in name]
