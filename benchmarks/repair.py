"""Seconds from SIGKILL in the middle of an answer to a session that is repaired, read and takes the next turn."""

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from backend.chat.config import ChatConfig
from benchmarks.harness import figures, model_server, register, report
from tests.support.server import ServerProcess

REPEATS = 3
POLL_SECONDS = 0.05
GIVE_UP_SECONDS = 60.0


async def begin(url: str, headers: dict[str, str], session: str) -> None:
    """Ask, and read until the fifth piece of the answer."""
    body = {"message": "Say something long.", "session_id": session}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{url}/chat/stream", json=body, headers=headers) as response,
    ):
        pieces = 0
        async for data in response.aiter_raw():
            pieces += data.count(b'"type":"content"')
            if pieces >= 5:
                return


async def repaired(url: str, headers: dict[str, str], session: str) -> dict[str, Any]:
    """The answer in the session, once it is neither pending nor out of reach."""
    async with asyncio.timeout(GIVE_UP_SECONDS), httpx.AsyncClient(base_url=url, headers=headers, timeout=5) as client:
        while True:
            try:
                page = await client.get(f"/sessions/{session}")
            except httpx.TransportError:
                page = None
            if page is not None and page.status_code == 200 and page.json()["messages"][-1]["status"] != "pending":
                return page.json()["messages"][-1]
            await asyncio.sleep(POLL_SECONDS)


async def seconds(killed: ServerProcess, reader: ServerProcess, headers: dict[str, str], session: str) -> float:
    """From the kill of the one server to the repaired session at the other, which may be the same, started anew."""
    await begin(killed.url, headers, session)
    await asyncio.sleep(0.5)  # what a kill may cost of the text is stored by then
    start = time.perf_counter()
    await killed.kill9()
    await killed.start(wait=False)
    answer = await repaired(reader.url, headers, session)
    took = time.perf_counter() - start
    if answer["status"] != "interrupted" or not answer["content"]:
        raise RuntimeError(f"not repaired: {answer}")
    await killed.wait_ready()
    return took


async def main() -> None:
    """A worker that is started anew at once, and one beside it that goes on."""
    data_dir = Path(tempfile.mkdtemp(prefix="citewire-bench-"))
    data_dir.chmod(0o711)
    try:
        async with model_server(tokens=2_000, delay=0.1) as model:
            env = {"LLM_BASE_URL": model, "LLM_MODEL": "scripted", "LLM_API_KEY": "none", "LOG_LEVEL": "warning"}
            async with ServerProcess(data_dir, env=env) as server:
                headers = {"Authorization": f"Bearer {await register(server.url)}"}
                alone = [await seconds(server, server, headers, f"alone{n}") for n in range(REPEATS)]
                async with ServerProcess(data_dir, env=env) as peer:
                    beside = [await seconds(server, peer, headers, f"beside{n}") for n in range(REPEATS)]
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)
    lease = ChatConfig().lease_seconds
    report(
        "repair",
        f"at most {lease + 5:.0f} s, the lease and 5 s",
        started_anew_seconds=figures(alone, 2),
        another_worker_seconds=figures(beside, 2),
        lease_seconds=lease,
        repeats=REPEATS,
    )


if __name__ == "__main__":
    asyncio.run(main())
