"""Logging: one JSON line an event on stderr, ids of the request from context, secrets taken out in one place.

The standard library's loggers (uvicorn, SQLAlchemy, the drivers) pass through the same redaction.
"""

import hashlib
import logging
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, TextIO

import orjson
import structlog
from structlog.contextvars import bound_contextvars
from structlog.typing import EventDict, Processor, WrappedLogger

REDACTED = "[redacted]"
MAX_CHARS = 20_000
_SECRET_KEY = re.compile(
    r"authorization|cookie|passw|passphrase|secret|credential|api[-_]?key|(access|admin|invite)[-_]?code|dsn"
    r"|(^|[-_.])token$|^token([-_]|$)|[a-z]token$",
    re.IGNORECASE,
)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # user:password@ of any URL
    (
        re.compile(r"(?P<keep>[a-z][a-z0-9+.-]{0,30}://[^\s:/@]{0,200}):[^\s/@]{1,500}(?=@)", re.IGNORECASE),
        rf"\g<keep>:{REDACTED}",
    ),
    (re.compile(r"\b(?P<keep>bearer|basic)\s+[^\s\"',;]{6,}", re.IGNORECASE), rf"\g<keep> {REDACTED}"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}(\.[A-Za-z0-9_-]*)?"), REDACTED),
    (re.compile(r"\b(sk|pk|rk)-[A-Za-z0-9_-]{8,}"), REDACTED),
    # password=..., "api_key": "...", 'token': '...', as in DSNs, query strings, bodies and reprs
    (
        re.compile(
            r"(?P<keep>\b[\w-]{0,40}?(?:passw(?:or)?d|api[-_]?key|secret(?:[-_]key)?|(?:access|refresh|auth)[-_]?token|token"
            r"|admin_code|authorization)[\"']?\s*[=:]\s*)(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s\"',;&)}\]]+)",
            re.IGNORECASE,
        ),
        rf"\g<keep>{REDACTED}",
    ),
)
_MAX_DEPTH = 8
_VERBOSE = ("httpx", "httpcore", "openai", "langchain", "langgraph", "hpack", "asyncio")
"""Libraries that write addresses with their query, or whole conversations, below the level of a warning."""


class Redactor:
    """Takes secrets out of log events: by key, by shape, and the literal ``secrets`` of this install."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        literals = sorted({secret for secret in secrets if len(secret) >= 6}, key=len, reverse=True)
        self._literals = re.compile("|".join(map(re.escape, literals))) if literals else None

    def __call__(self, logger: WrappedLogger, name: str, event: EventDict) -> EventDict:
        return {str(key): self._item(str(key), value, 0) for key, value in event.items()}

    def text(self, text: str) -> str:
        """``text`` without anything that looks like a secret, and such that JSON can carry it."""
        if len(text) > MAX_CHARS:  # also bounds the work of the patterns below
            text = text[:MAX_CHARS] + "[cut]"
        if not text.isascii():
            text = text.encode(errors="replace").decode()
        if self._literals is not None:
            text = self._literals.sub(REDACTED, text)
        for pattern, replacement in _PATTERNS:
            text = pattern.sub(replacement, text)
        return text

    def _item(self, key: str, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool | int | float):
            return self._value(value, depth)
        return REDACTED if _SECRET_KEY.search(key) else self._value(value, depth)

    def _value(self, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool | int | float):
            return value if not isinstance(value, int) or abs(value) < 2**63 else str(value)[:100]
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes):
            return self.text(value.decode(errors="replace"))
        if depth >= _MAX_DEPTH:
            return self.text(repr(value))
        if isinstance(value, Mapping):
            return {str(key): self._item(str(key), item, depth + 1) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(item, depth + 1) for item in value]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return self.text(str(value))


class _Handler(logging.StreamHandler[TextIO]):
    """stderr. A line that cannot be formatted is named, not shown: the library would print its arguments unredacted."""

    def handleError(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):  # stderr itself may be gone
            self.stream.write(f'{{"event": "log_line_lost", "logger": "{record.name}", "level": "error"}}\n')


class _UvicornFilter(logging.Filter):
    """Access lines without the query string; no second copy of an error that ``api/errors.py`` has logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == "uvicorn.access" and isinstance(record.args, tuple) and len(record.args) == 5:
            client, method, path, version, status = record.args
            record.args = (client, method, str(path).split("?", 1)[0], version, status)
        return not (record.name == "uvicorn.error" and record.msg == "Exception in ASGI application\n")


def configure_logging(level: str = "info", *, secrets: Iterable[str] = ()) -> None:
    """Send everything at ``level`` and above to stderr as JSON. ``secrets`` are literal values never to be shown.

    May be called again; the last call counts. Run uvicorn with ``log_config=None``, so that it keeps this.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            Redactor(secrets),
            structlog.processors.JSONRenderer(serializer=_dumps),
        ],
    )
    handler = _Handler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(_UvicornFilter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    for name in _VERBOSE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger ``name``: an event name and typed fields, ``log.info("run_finished", status=…)``."""
    return structlog.stdlib.get_logger(name)


def bind_request(request_id: str) -> AbstractContextManager[None]:
    """Within it every line carries ``request_id``."""
    return bound_contextvars(request_id=request_id)


def bind_run(run_id: str, session_id: str) -> AbstractContextManager[None]:
    """Within it every line carries the run and a hash of the session id, which clients choose and may be personal."""
    return bound_contextvars(run_id=run_id, session=hashlib.sha256(session_id.encode()).hexdigest()[:12])


def _dumps(value: object, **_: Any) -> str:
    return orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()


# Until configure_logging is called (a command that never does, a crash before): redacted lines too. The library's own
# default would draw tracebacks with the values of local variables.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
        Redactor(),
        structlog.processors.JSONRenderer(serializer=_dumps),
    ],
    logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=False,
)
