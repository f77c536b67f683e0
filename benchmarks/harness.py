"""What the scripts share: the servers under measurement, turns over HTTP, and figures of a run."""

import asyncio
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.server import ServerProcess

READY_SECONDS = 60.0
_LIMITS = {
    "MAX_RUNS_PER_USER": "100000",
    "MAX_RUNS_PER_WORKER": "100000",
    "REGISTER_RATE_PER_MINUTE": "0",
    "LOG_LEVEL": "warning",
}


@dataclass(frozen=True)
class Target:
    """A server to ask. ``ask`` is the body of one question in a session of its own."""

    name: str
    url: str
    path: str
    headers: dict[str, str]
    pid: int

    def body(self, session: str, question: str) -> dict[str, str]:
        return {"message": question, "session_id": session}

    def cpu_seconds(self) -> float:
        """User and system time of the server's own process so far (not of PostgreSQL or Valkey)."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)


@dataclass(frozen=True)
class Turn:
    """Seconds from the request to the first ``content`` and to the end; how many pieces came."""

    first_content: float
    total: float
    pieces: int


@asynccontextmanager
async def model_server(*, tokens: int, delay: float = 0.0) -> AsyncIterator[str]:
    """A scripted provider in a process of its own; gives its base URL."""
    async with python_module("benchmarks.model_server", f"--tokens={tokens}", f"--delay={delay}") as (url, _):
        yield url


@asynccontextmanager
async def minimal_server(model_url: str) -> AsyncIterator[Target]:
    """The least that streams an agent's answer: FastAPI, ``create_agent``, ``StreamingResponse``; stores nothing."""
    async with python_module("benchmarks.minimal_server", f"--model-url={model_url}") as (url, pid):
        await _listening(url)
        yield Target("minimal", url, "/chat/stream", {}, pid)


async def _listening(url: str) -> None:
    async with asyncio.timeout(READY_SECONDS), httpx.AsyncClient() as http:
        while True:
            try:
                await http.get(url)
            except httpx.TransportError:
                await asyncio.sleep(0.05)
            else:
                return


@asynccontextmanager
async def citewire(model_url: str | None, *, module: str = "backend", **env: str) -> AsyncIterator[Target]:
    """A whole Citewire with embedded servers on a throw-away data directory, and one account.

    ``module`` is what is run, for a server that differs in one thing.
    """
    data_dir = Path(tempfile.mkdtemp(prefix="citewire-bench-"))
    data_dir.chmod(0o711)
    model = {"LLM_BASE_URL": model_url, "LLM_MODEL": "scripted", "LLM_API_KEY": "none"} if model_url else {}
    try:
        async with ServerProcess(data_dir, env={**_LIMITS, **model, **env}, module=module) as server:
            headers = {"Authorization": f"Bearer {await register(server.url)}"}
            yield Target("citewire", server.url, "/chat/stream", headers, server.pid)
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


async def register(url: str) -> str:
    """A token of a new account."""
    async with httpx.AsyncClient(base_url=url) as client:
        body = {"username": f"bench{time.time_ns()}", "password": "correct horse battery"}
        answer = await client.post("/auth/register", json=body)
        answer.raise_for_status()
        return answer.json()["access_token"]


@asynccontextmanager
async def python_module(module: str, *arguments: str) -> AsyncIterator[tuple[str, int]]:
    """A module that prints its URL when it listens; gives URL and process id."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), READY_SECONDS)
        yield line.decode().strip(), process.pid
    finally:
        process.kill()
        await process.wait()


async def ask(client: httpx.AsyncClient, target: Target, session: str, question: str = "Say something long.") -> Turn:
    """One whole turn. Raises ``RuntimeError`` when it does not end as it should."""
    start = time.perf_counter()
    first, pieces, tail = 0.0, 0, b""
    async with client.stream(
        "POST", target.url + target.path, json=target.body(session, question), headers=target.headers
    ) as response:
        async for data in response.aiter_raw():
            tail += data
            *events, tail = tail.split(b"\n\n")
            found = sum(1 for event in events if b'"type":"content"' in event)
            if found and not first:
                first = time.perf_counter() - start
            pieces += found
            if events and events[-1] == b"data: [DONE]":
                if not pieces:
                    raise RuntimeError(f"{target.name}: a turn without content: {events!r}")
                return Turn(first, time.perf_counter() - start, pieces)
    raise RuntimeError(f"{target.name}: HTTP {response.status_code}, no end: {tail[-300:]!r}")


def client(connections: int = 1) -> httpx.AsyncClient:
    """A client that keeps its connections."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.AsyncClient(timeout=120, limits=limits)


def figures(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Median, 95th and 99th percentile, least and greatest."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "median": round(statistics.median(ordered), digits),
        "p95": round(ordered[min(last, round(0.95 * last))], digits),
        "p99": round(ordered[min(last, round(0.99 * last))], digits),
        "min": round(ordered[0], digits),
        "max": round(ordered[-1], digits),
    }


def report(name: str, target: str, **values: Any) -> None:
    """Print the figure as JSON. ``target`` says what it should be."""
    machine = {"cores": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()}
    print(json.dumps({"figure": name, "target": target, **values, "machine": machine}, indent=2))
