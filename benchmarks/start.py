"""Time of the first and of later starts until the server is ready, and memory after it has answered."""

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Target, ask, client, figures, register, report
from tests.support.server import ServerProcess

STARTS = 5


async def main() -> None:
    """With embedded servers, started from nothing each time (as after an orderly stop)."""
    data_dir = Path(tempfile.mkdtemp(prefix="citewire-bench-"))
    data_dir.chmod(0o711)
    seconds: list[float] = []
    try:
        server = ServerProcess(data_dir, arguments=["--sample"])
        for _ in range(STARTS + 1):
            start = time.perf_counter()
            await server.start()
            seconds.append(time.perf_counter() - start)
            headers = {"Authorization": f"Bearer {await register(server.url)}"}
            target = Target("citewire", server.url, "/chat/stream", headers, server.pid)
            async with client() as http:
                for number in range(10):
                    await ask(http, target, f"s{number}")
            resident = target.resident_bytes()
            await server.sigterm()
        await server.close()
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)
    report(
        "start",
        "second start until ready 6 s; 450 MB resident",
        first_start_seconds=round(seconds[0], 2),
        later_start_seconds=figures(seconds[1:], 2),
        resident_mb=round(resident / 1e6),
    )


if __name__ == "__main__":
    asyncio.run(main())
