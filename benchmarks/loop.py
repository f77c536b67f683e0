"""How long one callback of the event loop works: CPU time, so that what else the machine does counts nothing.

The server runs in this process on asyncio's own loop, whose callbacks can be timed; its clients have a thread and a
loop of their own, the model a process.
"""

import asyncio
import shutil
import tempfile
import threading
import time
from asyncio import events
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from backend.app import prepare
from backend.cli.server import worker_app
from backend.settings import Settings
from benchmarks.first_answer import fill, made
from benchmarks.harness import Target, ask, client, figures, python_module, register, report
from tests.support.server import free_port

PASSAGES, TURNS, WARM_UP = 60, 60, 5
COMPARISONS = ["Compare pump 3 and pump 9", "How many litres does pump 3 deliver, and how many litres does pump 9?"]


@contextmanager
def timed_callbacks() -> Iterator[list[float]]:
    """CPU milliseconds of each callback that this thread's loop runs meanwhile."""
    here, run, found = threading.get_ident(), events.Handle._run, []

    def timed(handle: events.Handle) -> None:
        if threading.get_ident() != here:
            return run(handle)
        start = time.thread_time()
        try:
            return run(handle)
        finally:
            found.append((time.thread_time() - start) * 1000)

    events.Handle._run = timed
    try:
        yield found
    finally:
        events.Handle._run = run


@asynccontextmanager
async def served(model_url: str | None) -> AsyncIterator[str]:
    """A server in this process; gives its address."""
    data_dir = Path(tempfile.mkdtemp(prefix="citewire-bench-"))
    data_dir.chmod(0o711)
    model = {"llm_base_url": model_url, "llm_model": "scripted"} if model_url else {}
    settings = Settings(data_dir=data_dir, log_level="warning", chat_rate_per_minute=0, **model)
    try:
        await prepare(settings, sample=False)
        server = uvicorn.Server(
            uvicorn.Config(worker_app(settings), port=free_port(), http="httptools", log_config=None)
        )
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110  # uvicorn tells it by this alone
            await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{server.config.port}"
        server.should_exit = True
        await serving
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


async def filled(url: str) -> Target:
    """The library of the turns to come, and who asks."""
    target = Target("citewire", url, "/chat/stream", {"Authorization": f"Bearer {await register(url)}"}, 0)
    async with client(4) as http:
        await fill(http, target, made()[0][:PASSAGES])
    return target


async def turns(target: Target, first: int, count: int) -> None:
    """Plain questions, every sixth a comparison of two things, each in a session of its own."""
    questions = made()[1]
    async with client() as http:
        for number in range(first, first + count):
            plain = number % 6 or number // 6
            question = questions[number % PASSAGES] if plain else COMPARISONS[number // 6 % len(COMPARISONS)]
            await ask(http, target, f"s{number}", question)


async def measure(model_url: str | None) -> dict[str, float]:
    """Figures of the callbacks of ``TURNS`` turns."""
    async with served(model_url) as url:
        target = await asyncio.to_thread(lambda: asyncio.run(filled(url)))
        await asyncio.to_thread(lambda: asyncio.run(turns(target, 0, WARM_UP)))
        with timed_callbacks() as found:
            await asyncio.to_thread(lambda: asyncio.run(turns(target, WARM_UP, TURNS)))
    return figures(found, 2) | {"over_20": sum(1 for value in found if value > 20), "callbacks": len(found)}


async def main() -> None:
    """Without a provider, and with one that plans, searches and grades."""
    found: dict[str, Any] = {"extractive": await measure(None)}
    async with python_module("tests.support.fake_llm") as (url, _):
        found["provider"] = await measure(url)
    report("loop", "no step of a turn works for more than 20 ms on the event loop", callback_cpu_ms=found, turns=TURNS)


if __name__ == "__main__":
    asyncio.run(main())
