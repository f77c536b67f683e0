"""The process of ``citewire reindex``."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any, NoReturn, TypeVar

import typer
from sqlalchemy.exc import SQLAlchemyError

from backend.app import reindexing
from backend.cli.output import complain, console, fail
from backend.errors import AppError
from backend.infra.embedded.errors import EmbeddedServiceError
from backend.knowledge.reindex import Compared, Reindexed
from backend.log import configure_logging
from backend.settings import Settings, load_settings

T = TypeVar("T")
REPORT_SECONDS = 2.0
STOPPED = 130


def run_reindex() -> None:
    """Rebuild with the options of the environment. What is wrong is one line and code 1; stopped, code 130."""
    done = _run(_reindex, "the old index answers, and the next `citewire reindex` goes on from here")
    console.print(f"{done.leaves} leaves of {done.documents} documents are indexed; the new index answers")


def run_verify(*, repair: bool) -> None:
    """Compare, and with ``repair`` make equal. Code 1 when they differ in the end."""
    found, repaired = _run(partial(_verify, repair=repair), "`citewire index verify --repair` goes on from here")
    console.print(f"{found.leaves} leaves in the database, {found.missing} of them missing in the index")
    if found.unknown:
        console.print(f"{found.unknown} leaves that no document has are left over")
    if repaired is not None:
        console.print(f"{repaired.embedded} leaves were added; nothing is left over")
    elif not found.equal:
        complain("they differ; `citewire index verify --repair` makes them equal")
        raise typer.Exit(1)


def _run(work: Callable[[Settings], Coroutine[Any, Any, T]], after: str) -> T:
    """What ``work`` gives. Otherwise ends the process: ``after`` says what then holds."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        settings = load_settings()
        configure_logging(settings.log_level, secrets=settings.secret_values())
        return asyncio.run(work(settings))
    except KeyboardInterrupt:
        complain(f"stopped; {after}")
        raise typer.Exit(STOPPED) from None
    except AppError as error:
        fail(f"{error.code}: {after}")
    except (EmbeddedServiceError, ValueError) as error:
        fail(str(error))
    except (OSError, SQLAlchemyError):
        fail("DATABASE_URL: the database cannot be reached or brought to its schema")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """As Ctrl-C: through every ``finally`` block."""
    raise KeyboardInterrupt


async def _reindex(settings: Settings) -> Reindexed:
    async with reindexing(settings) as reindex:
        return await reindex.run(Progress())


async def _verify(settings: Settings, *, repair: bool) -> tuple[Compared, Reindexed | None]:
    async with reindexing(settings, in_place=True) as reindex:
        found = await reindex.compare()
        return found, await reindex.run(Progress()) if repair and not found.equal else None


class Progress:
    """Prints a line when ``REPORT_SECONDS`` have passed since the last one."""

    def __init__(self) -> None:
        self._began = self._printed = time.monotonic()
        self._first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = done  # what a run before this one has done says nothing about the rate
        if now - self._printed < REPORT_SECONDS or total == 0:
            return
        self._printed = now
        rate = (done - self._first) / (now - self._began)
        left = f", {_duration((total - done) / rate)} left" if rate > 0 else ""
        console.print(f"{done} of {total} leaves ({100 * done // total} %), {rate:.0f} a second{left}")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
