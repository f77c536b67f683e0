"""The server process of ``citewire serve``."""

import asyncio
import gc
import os
import signal
import socket
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, NoReturn

import uvicorn

from backend.app import create_app, prepare
from backend.cli.output import fail
from backend.infra.embedded.errors import EmbeddedServiceError
from backend.infra.embedded.postgres import embedded_postgres
from backend.infra.embedded.valkey import embedded_valkey
from backend.settings import Settings, SettingsError, load_settings

GC_THRESHOLDS = (10_000, 20, 20)
"""Collections of cyclic garbage, ten times as rare as by default, and never through what was there at the start: the
libraries' own objects, in which a full collection took up to 30 ms. That was a quarter of the CPU of a short turn."""
STREAM_END_SECONDS = 5
"""What the server waits for streams beyond the grace in which they are ended."""


def run_server(*, sample: bool, host: str | None, port: int | None, workers: int | None) -> None:
    """Serve until a signal; None leaves an option as the environment says. Wrong options are one line and code 1."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        settings = load_settings()
        changed = {"host": host, "port": port, "workers": workers}
        settings = settings.model_copy(update={name: value for name, value in changed.items() if value is not None})
        _check_address(settings)
        with ExitStack() as stack:
            _hold_embedded(stack, settings)
            asyncio.run(prepare(settings, sample=sample))
            _share_metrics(stack, settings)
            _run(settings)
    except (SettingsError, EmbeddedServiceError, ValueError) as error:
        fail(str(error))


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Ends the process through its ``finally`` blocks.

    uvicorn raises the signal once more when it has shut down; by default that would end the process there and leave
    the embedded servers behind.
    """
    raise SystemExit(0)


def _check_address(settings: Settings) -> None:
    """Raises ``ValueError`` when nobody could listen there, before anything is started for it."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else "no such address"
        raise ValueError(f"HOST, PORT: cannot listen on {settings.host}:{settings.port} ({reason})") from error


def _hold_embedded(stack: ExitStack, settings: Settings) -> None:
    """Start the embedded servers here, so that they outlive any single worker."""
    if settings.database_url is None:
        stack.enter_context(embedded_postgres(settings.data_dir))
    if settings.redis_url is None:
        stack.enter_context(embedded_valkey(settings.data_dir))


def _share_metrics(stack: ExitStack, settings: Settings) -> None:
    """A new directory in which the workers keep what they count, so that any of them can answer for all.

    It belongs to this server alone: ``DATA_DIR`` may be shared by hosts, whose process ids may be equal. The library
    reads its place from the environment alone, when a worker imports it.
    """
    if settings.workers > 1:
        directory = stack.enter_context(TemporaryDirectory(prefix="citewire-metrics-", ignore_cleanup_errors=True))
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory  # noqa: TID251  # inherited by the workers


def worker_app(settings: Settings | None = None) -> Any:
    """The application of one worker process; its settings are read when none are given."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    return create_app(settings)


def _run(settings: Settings) -> None:
    one = settings.workers == 1
    uvicorn.run(
        worker_app(settings) if one else "backend.cli.server:worker_app",
        factory=not one,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=True,
        server_header=False,
        proxy_headers=False,  # TRUSTED_PROXIES decides whom to believe
        timeout_graceful_shutdown=int(settings.shutdown_grace_seconds) + STREAM_END_SECONDS,
    )
