"""The stages of a turn: each is timed, and is a span when spans are exported.

Spans need the extra ``otel`` and an endpoint; without, a stage costs its two clock readings. Spans carry names, times
and ids of ours, never a text of a user or of a document, and of an error its type alone.
"""

import importlib
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from backend.metrics import STAGE_SECONDS

EXPORT_SECONDS = 5.0
_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_tracer: Any = None  # of the process, as the log is; the library is optional, so it has no type here


class TracingError(ValueError):
    """Spans cannot be exported; the text is one line that names the setting."""


@contextmanager
def stage(name: str, *, current: bool = True, **attributes: str | int) -> Generator[None]:
    """Time what is done within as the stage ``name``, a constant (it is a label).

    ``current=False`` within an async generator, which may be closed in another context than it was begun in: the span
    then has a parent but no children.
    """
    started = time.perf_counter()
    try:
        if _tracer is None:
            yield
        else:
            with _span(name, current, attributes):
                yield
    finally:
        STAGE_SECONDS.labels(name).observe(time.perf_counter() - started)


@contextmanager
def _span(name: str, current: bool, attributes: dict[str, str | int]) -> Generator[None]:
    span = _tracer.start_span(name, attributes=attributes)
    try:
        if current:
            with _library("opentelemetry.trace").use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        else:
            yield
    except BaseException as error:
        span.set_attribute("error.type", getattr(error, "code", type(error).__name__))
        raise
    finally:
        span.end()


def check_tracing(endpoint: str | None) -> None:
    """Raises :class:`TracingError` when spans are asked for and the extra is not installed."""
    if endpoint is not None:
        _library(_EXPORTER)


def _library(name: str) -> Any:
    """A module of the extra. Raises :class:`TracingError`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        text = "OTEL_EXPORTER_OTLP_ENDPOINT: exporting spans needs the extra: pip install 'citewire[otel]'"
        raise TracingError(text) from error


def start_tracing(endpoint: str, headers: dict[str, str], *, service: str, version: str) -> Callable[[], None]:
    """Export spans to ``endpoint`` (OTLP over HTTP, its base address) in the background, in batches.

    Gives the function that sends the rest and ends it; it blocks for the exporter's timeout at most. Raises
    :class:`TracingError`.
    """
    global _tracer  # one a process, like the log's configuration
    address = f"{endpoint.rstrip('/')}/v1/traces"
    exporter = _library(_EXPORTER).OTLPSpanExporter(endpoint=address, headers=headers, timeout=EXPORT_SECONDS)
    resource = _library("opentelemetry.sdk.resources").Resource.create(
        {"service.name": service, "service.version": version}
    )
    provider = _library("opentelemetry.sdk.trace").TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(_library("opentelemetry.sdk.trace.export").BatchSpanProcessor(exporter))
    _tracer = provider.get_tracer("citewire")

    def stop() -> None:
        global _tracer
        _tracer = None
        provider.shutdown()

    return stop
