"""What a small program costs: from the call of the tool to its text, with the thread's directories mounted."""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from backend.infra.threads import locate_thread, thread_id_of
from backend.sandbox.base import Sandbox
from backend.sandbox.local import LocalSandboxes
from benchmarks.harness import report

RUNS = 200
CODE = {
    "expression": "print(6 * 7)",
    "csv_sum": "import csv\nprint(sum(int(r['price']) for r in csv.DictReader(open('/mnt/user-data/uploads/s.csv'))))",
}


async def measure(data_dir: Path, runs: int) -> dict[str, Any]:
    """Milliseconds of each program, the first of all with the start of the sandbox's process."""
    thread = thread_id_of(UUID(int=1), UUID(int=2))
    paths = locate_thread(data_dir, thread)
    paths.make()
    (paths.uploads / "s.csv").write_text("price\n" + "\n".join(str(n) for n in range(1_000)) + "\n")
    sandboxes = LocalSandboxes(lambda thread_id: locate_thread(data_dir, thread_id))
    sandbox = await sandboxes.get(await sandboxes.acquire(thread))
    figures: dict[str, Any] = {"first_ms": round(await _timed(sandbox, CODE["expression"]), 2)}
    for name, code in CODE.items():
        times = sorted([await _timed(sandbox, code) for _ in range(runs)])
        figures[name] = {"p50_ms": round(statistics.median(times), 2), "p99_ms": round(times[int(runs * 0.99) - 1], 2)}
    await sandboxes.aclose()
    return figures


async def _timed(sandbox: Sandbox, code: str) -> float:
    begun = time.perf_counter()
    ended = await sandbox.run_python(code)
    assert ended.error is None, ended.error
    return (time.perf_counter() - begun) * 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    runs: int = parser.parse_args().runs
    data_dir = Path(tempfile.mkdtemp(prefix="citewire-bench-"))
    try:
        report("run_python", "a small expression: 5 ms median", **asyncio.run(measure(data_dir, runs)))
    finally:
        shutil.rmtree(data_dir)


if __name__ == "__main__":
    main()
