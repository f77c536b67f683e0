"""A file to the text of its pages, read in a process of its own: a bad file hangs or crashes that, never the server."""

import asyncio
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from backend.errors import DocumentError, TooLarge, TypeMismatch
from backend.knowledge.config import KnowledgeConfig
from backend.text import clean_text, is_blank

FILE_TYPES = {
    **{extension: extension for extension in ("pdf", "docx", "xlsx", "pptx", "epub", "html", "csv", "json")},
    **dict.fromkeys(("md", "markdown", "txt"), "text"),
    "htm": "html",
    "tsv": "csv",
    "jsonl": "json",
}
"""Extension to what the worker reads it as."""

_PACKAGE_ROOT = Path(__file__).parents[2]
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from backend.knowledge.parse_worker import main; main()"
"""The worker gets this very package, wherever it lies, and nothing of the directory or the environment it runs in."""
_ENVIRONMENT = {"LANG": "C.UTF-8", "PYTHONUTF8": "1", "MALLOC_ARENA_MAX": "2", "RAYON_NUM_THREADS": "2"}
"""All that the worker gets: no keys to find there, and few threads, as each one reserves memory."""
WORKER_ARGUMENTS = ("-I", "-c", _PROGRAM, str(_PACKAGE_ROOT))
"""What the interpreter is run with."""
_LIMIT_SIGNALS = frozenset({signal.SIGABRT, signal.SIGKILL, signal.SIGXCPU})
"""How a process ends that was refused memory or ran out of its time."""


_CONTROL = re.compile("[\x01-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")


@dataclass(frozen=True, slots=True)
class Page:
    """``number`` counts from 1; ``None`` where the format has no pages."""

    number: int | None
    text: str


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """The pages that hold text, in order; ``total_pages`` counts the blank ones too.

    ``warnings`` say what of the file is not in them: each has the ``key`` of a text in the catalogue, and its values.
    """

    pages: list[Page]
    total_pages: int | None
    warnings: list[dict[str, Any]]


class _WorkerPage(BaseModel):
    number: int | None
    text: str


class _Answer(BaseModel):
    code: str | None = None
    pages: list[_WorkerPage] = []
    total_pages: int | None = None
    replaced: int = 0


def file_type_of(filename: str) -> str:
    """The lower-case extension of ``filename``. Raises :class:`TypeMismatch` when that type is not supported."""
    extension = filename.rpartition(".")[2].lower() if "." in filename else ""
    if extension not in FILE_TYPES:
        raise TypeMismatch()
    return extension


async def parse_document(path: Path, file_type: str, config: KnowledgeConfig) -> ParsedDocument:
    """The text of the file at ``path``, cleaned, with ``\\n`` as line end.

    Pages and slides are numbered. Raises :class:`DocumentError`, :class:`TypeMismatch` or
    :class:`TooLarge` (pages, cells, unpacked size, memory, time).
    """
    request = {
        "path": str(path),
        "type": FILE_TYPES[file_type],
        "max_pages": config.parse_max_pages,
        "max_cells": config.parse_max_cells,
        "max_inflated_bytes": config.parse_max_inflated_bytes,
        "memory_bytes": config.parse_memory_bytes,
        "cpu_seconds": math.ceil(config.parse_timeout_seconds) + 1,
    }
    output = await _run(json.dumps(request).encode() + b"\n", config)
    return await asyncio.to_thread(_read_answer, output)


async def _run(request: bytes, config: KnowledgeConfig) -> bytes:
    process = await asyncio.to_thread(_start)
    try:
        async with asyncio.timeout(config.parse_timeout_seconds):
            output = await asyncio.to_thread(_exchange, process, request, config.parse_max_inflated_bytes)
            code = await asyncio.to_thread(process.wait)
    except TimeoutError as error:
        raise TooLarge() from error
    finally:
        await asyncio.shield(asyncio.to_thread(_end, process))
    if code != 0:
        raise _error_of_exit(code)
    return output


def _start() -> "subprocess.Popen[bytes]":
    """The worker. Not by the event loop: uvloop forks the whole process and runs the libraries' fork hooks."""
    return subprocess.Popen(
        [sys.executable, *WORKER_ARGUMENTS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT,
        start_new_session=True,
    )


def _exchange(process: "subprocess.Popen[bytes]", request: bytes, max_bytes: int) -> bytes:
    """Blocks until the worker closes its output, which killing it does."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once; its exit code tells
        process.stdin.write(request)  # stays open: its end tells the worker that nobody waits any more
        process.stdin.flush()
    parts: list[bytes] = []
    size = 0
    while part := os.read(process.stdout.fileno(), 1024 * 1024):
        size += len(part)
        if size > max_bytes:
            raise TooLarge()
        parts.append(part)
    return b"".join(parts)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kills the worker with all it started, and takes its exit code so that no zombie stays."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _error_of_exit(code: int) -> TooLarge | DocumentError:
    number = -code if code < 0 else code - 128
    return TooLarge() if number in _LIMIT_SIGNALS else DocumentError("parse_failed")


def _read_answer(output: bytes) -> ParsedDocument:
    try:
        answer = _Answer.model_validate_json(output)
    except ValidationError as error:
        raise DocumentError("parse_failed") from error
    match answer.code:
        case None:
            pass
        case "too_large":
            raise TooLarge()
        case "type_mismatch":
            raise TypeMismatch()
        case "no_extractable_text":
            total = answer.total_pages or 0
            raise DocumentError("no_extractable_text", pages=total, warnings=_warnings(answer, total))
        case code:
            raise DocumentError(code)
    pages = [Page(page.number, _clean(page.text)) for page in answer.pages]
    pages = [page for page in pages if not is_blank(page.text)]
    if not pages:
        raise DocumentError("empty_document")
    blank = (answer.total_pages or len(pages)) - len(pages)
    return ParsedDocument(pages, answer.total_pages, _warnings(answer, blank))


def _warnings(answer: _Answer, blank: int) -> list[dict[str, Any]]:
    warnings: list[dict[str, Any]] = []
    if answer.replaced:
        warnings.append({"key": "warning_replaced", "count": answer.replaced})
    if blank > 0:
        warnings.append({"key": "warning_blank_pages", "count": blank, "total": answer.total_pages})
    return warnings


def _clean(text: str) -> str:
    return _CONTROL.sub("", clean_text(text)).replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
