"""CPU of the durable log as a share of the CPU of a stream: the same streams with and without it, in one run."""

import asyncio
import statistics

import psutil

from benchmarks.harness import Target, citewire, figures, model_server, report
from benchmarks.paced import Paced, read_all

STREAMS, TOKENS, DELAY, ROUNDS = 100, 100, 0.1, 4
SPREAD_SECONDS = 2.0


def cpu_of_postgres(target: Target) -> float:
    """User and system time of the embedded PostgreSQL, with its connections', so far."""
    total = 0.0
    for process in psutil.Process(target.pid).children(recursive=True):
        if process.name().startswith("postgres"):
            times = process.cpu_times()
            total += times.user + times.system
    return total


async def cpu_of_streams(target: Target, label: str) -> tuple[float, float]:
    """CPU seconds of one stream, the mean of ``STREAMS``: of the server's process, and of PostgreSQL."""
    streams = [Paced.of(target, f"{label}-{number}") for number in range(STREAMS)]
    before = target.cpu_seconds(), cpu_of_postgres(target)
    await read_all(target.url, streams, SPREAD_SECONDS)
    after = target.cpu_seconds(), cpu_of_postgres(target)
    assert all(len(stream.seen) == TOKENS for stream in streams), [stream.failed for stream in streams]
    return (after[0] - before[0]) / STREAMS, (after[1] - before[1]) / STREAMS


async def main() -> None:
    """Rounds alternate, so that what else the machine does hits both."""
    async with (
        model_server(tokens=TOKENS, delay=DELAY) as model,
        citewire(model) as logged,
        citewire(model, module="benchmarks.unlogged") as unlogged,
    ):
        targets = {"logged": logged, "unlogged": unlogged}
        server: dict[str, list[float]] = {name: [] for name in targets}
        postgres: dict[str, list[float]] = {name: [] for name in targets}
        for number in range(ROUNDS + 1):
            for name, target in targets.items():
                found = await cpu_of_streams(target, f"round{number}")
                if number:  # the first makes what is made once
                    server[name].append(found[0])
                    postgres[name].append(found[1])
    whole = {name: [sum(pair) for pair in zip(server[name], postgres[name], strict=True)] for name in targets}
    report(
        "log_cost",
        "at most 25 % of the CPU of a stream, the server's",
        share=_share(server),
        share_with_postgres=_share(whole),
        server_cpu_ms_a_stream={name: figures([value * 1000 for value in found], 1) for name, found in server.items()},
        postgres_cpu_ms_a_stream={
            name: figures([value * 1000 for value in found], 1) for name, found in postgres.items()
        },
        streams=STREAMS * ROUNDS,
        streams_at_once=STREAMS,
        tokens=TOKENS,
    )


def _share(found: dict[str, list[float]]) -> float:
    logged, unlogged = statistics.median(found["logged"]), statistics.median(found["unlogged"])
    return round((logged - unlogged) / logged, 3)


if __name__ == "__main__":
    asyncio.run(main())
