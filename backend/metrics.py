"""What is counted and timed, for Prometheus. No label holds an id or anything that a user wrote.

Every value is right with several workers: ``citewire serve --workers N`` gives them one directory in which each keeps
its own file (``PROMETHEUS_MULTIPROC_DIR``, the library's own way), and whichever worker is asked adds them up.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
    values,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SAMPLE_SECONDS = 1.0
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

disable_created_metrics()  # a second series for each, which several workers would not have
_registry = CollectorRegistry()


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"citewire_{name}", text, labels, registry=_registry)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    """The sum over the workers that live."""
    return Gauge(f"citewire_{name}", text, labels, registry=_registry, multiprocess_mode="livesum")


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
    return Histogram(f"citewire_{name}", text, labels, registry=_registry, buckets=buckets)


TURNS = _counter("turns", "Turns whose end is stored, by end.", "end")
TURN_ERRORS = _counter("turn_errors", "Turns that ended with an error event, by its code.", "code")
TOKENS = _counter("tokens", "Tokens of model calls, as the provider counts them.", "kind")
FIRST_TOKEN_SECONDS = _histogram("first_token_seconds", "From the accepted question to the first piece of its answer.")
STAGE_SECONDS = _histogram("stage_seconds", "Time in the stages of a turn; the stage turn is the whole.", "stage")
ACTIVE_RUNS = _gauge("active_runs", "Turns that are being produced.")
SUBSCRIBERS = _gauge("stream_subscribers", "Streams that are being read.")
DROPPED_SUBSCRIBERS = _counter("stream_subscribers_dropped", "Streams that were cut because their reader fell behind.")
PENDING_EVENTS = _gauge("events_pending", "Events of running turns that are not in the database yet.")
POOL_CONNECTIONS = _gauge("database_pool_connections", "Connections to PostgreSQL: in use, and the most.", "state")
LOOP_LAG_SECONDS = _histogram(
    "loop_lag_seconds", "How much later than asked for the event loop comes back.", buckets=_LAG_SECONDS
)
CACHE_READS = _counter("cache_reads", "Reads of cached sessions and session lists.", "kind", "result")
CACHE_FAILURES = _counter("cache_failures", "Calls to Redis that failed and paused its use.")
UPLOADS = _counter("uploads", "Uploaded documents: ok, or the code of what was wrong.", "result")
REFUSALS = _counter("http_errors", "Error answers, by code.", "code")

for _end in ("completed", "stopped", "failed", "interrupted"):
    TURNS.labels(_end)
for _kind in ("input", "output"):
    TOKENS.labels(_kind)
for _kind in ("messages", "list"):
    for _result in ("hit", "miss"):
        CACHE_READS.labels(_kind, _result)
UPLOADS.labels("ok")


def count_turn(end: str, code: str | None = None, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
    """A turn ended: call it once its end is committed, by the worker that committed it."""
    TURNS.labels(end).inc()
    if code is not None:
        TURN_ERRORS.labels(code).inc()
    TOKENS.labels("input").inc(input_tokens)
    TOKENS.labels("output").inc(output_tokens)


def count_cache_read(kind: Literal["messages", "list"], *, hit: bool) -> None:
    """A read of a cached copy; stale, foreign and unreadable copies are misses."""
    CACHE_READS.labels(kind, "hit" if hit else "miss").inc()


def count_upload(result: str) -> None:
    """Counts an upload by its end: ``ok`` or an error code."""
    UPLOADS.labels(result).inc()


def stage_seconds(name: str) -> float:
    """What this process has spent in a stage so far."""
    return _registry.get_sample_value("citewire_stage_seconds_sum", {"stage": name}) or 0.0


async def watch(sample: Callable[[], None]) -> None:
    """Measure the loop's lag and call ``sample`` (which sets gauges) every ``SAMPLE_SECONDS``, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + SAMPLE_SECONDS
        await asyncio.sleep(SAMPLE_SECONDS)
        LOOP_LAG_SECONDS.observe(max(0.0, loop.time() - due))
        sample()


def render() -> bytes:
    """All values in Prometheus' text form, of all workers together. May read files: call it in a thread."""
    if not values.ValueClass._multiprocess:  # pyright: ignore[reportPrivateUsage]  # decided by the library at import
        return generate_latest(_registry)
    registry = CollectorRegistry()
    collector = multiprocess.MultiProcessCollector(registry)
    _drop_dead(Path(str(collector._path)))  # pyright: ignore[reportPrivateUsage, reportUnknownArgumentType, reportUnknownMemberType]  # the directory it found
    return generate_latest(registry)


def _drop_dead(directory: Path) -> None:
    """Forget the gauges of workers that were killed; what they counted stays."""
    for path in directory.glob("gauge_live*.db"):
        pid = int(path.stem.rpartition("_")[2])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)
        except PermissionError:
            continue
