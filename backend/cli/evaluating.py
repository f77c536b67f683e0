"""The process of ``citewire eval``."""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeVar

import typer
from pydantic import BaseModel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from sqlalchemy.exc import SQLAlchemyError

from backend.cli.output import complain, console, errors, escape_json, fail
from backend.errors import AppError
from backend.evaluation.answers import AnswersReport, measure_answers, turns_of
from backend.evaluation.dataset import Dataset, load_dataset
from backend.evaluation.library import Library, throwaway
from backend.evaluation.measures import check_measures
from backend.evaluation.retrieval import PASSES, STAGES, RetrievalReport, measure_retrieval
from backend.infra.embedded.errors import EmbeddedServiceError
from backend.log import configure_logging
from backend.settings import Settings, load_settings

STOPPED = 130

Report = TypeVar("Report", bound=BaseModel)
Measured = Callable[[Library, Dataset, Settings, "_Bars"], Coroutine[None, None, Report]]


def run_retrieval(passages: Path, questions: Path, *, lang: str | None, sample: int | None, as_json: bool) -> None:
    """Measure and print. What is wrong is one line and code 1; stopped, code 130."""
    with _explained():
        check_measures()
        report = _run(load_dataset(passages, questions, lang=lang, sample=sample), _retrieval)
    _print_json(report) if as_json else _print_retrieval(report)


async def _retrieval(library: Library, dataset: Dataset, settings: Settings, bars: "_Bars") -> RetrievalReport:
    advance = bars.begin("questions", len(dataset.questions) * len(PASSES))
    return await measure_retrieval(library, dataset.questions, len(dataset.passages), settings, advance)


def run_answers(passages: Path, questions: Path, *, lang: str | None, sample: int | None, as_json: bool) -> None:
    """As :func:`run_retrieval`; when turns failed the figures are printed all the same, and the code is 1."""
    with _explained():
        report = _run(load_dataset(passages, questions, lang=lang, sample=sample), _answers)
    _print_json(report) if as_json else _print_answers(report)
    for code, count in report.failed.items():
        complain(f"{count} turns failed: {code}")
    if report.failed:
        raise typer.Exit(1)


async def _answers(library: Library, dataset: Dataset, settings: Settings, bars: "_Bars") -> AnswersReport:
    advance = bars.begin("answers", turns_of(dataset.questions))
    return await measure_answers(library, dataset.questions, len(dataset.passages), advance)


@contextmanager
def _explained() -> Generator[None]:
    """What ends the command before its figures: one line, and nothing is left behind."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        complain("stopped")
        raise typer.Exit(STOPPED) from None
    except AppError as error:
        fail(f"the measurement ended early ({error.code})")
    except (EmbeddedServiceError, ValueError) as error:
        fail(str(error))
    except SQLAlchemyError:
        fail("the measurement ended early (storage_unavailable)")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """As Ctrl-C: through every ``finally`` block."""
    raise KeyboardInterrupt


def _run(dataset: Dataset, measured: Measured[Report]) -> Report:
    """What ``measured`` finds in a new library that holds the passages."""
    settings = load_settings()
    configure_logging("error", secrets=settings.secret_values())

    async def run(changed: Settings) -> Report:
        async with Library.open(changed) as library:
            await library.add(dataset.passages, bars.begin("passages", len(dataset.passages)))
            return await measured(library, dataset, changed, bars)

    with _Bars() as bars, throwaway(settings) as changed:
        return asyncio.run(run(changed))


class _Bars(Progress):
    """One bar for each part of the work, with the time that is left, on a terminal's standard error."""

    def __init__(self) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=errors,
            transient=True,
            disable=not errors.is_terminal,
        )

    def begin(self, what: str, total: int) -> Callable[[], None]:
        """A new bar; what is given is to be called ``total`` times."""
        task = self.add_task(what, total=total)
        return lambda: self.advance(task)


def _print_json(report: BaseModel) -> None:
    typer.echo(escape_json(report.model_dump_json(indent=2)))


def _print_retrieval(report: RetrievalReport) -> None:
    table = Table("arm", "nDCG@10", "recall@5", "MRR", "ms", *STAGES, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for arm, found in report.arms.items():
        stages = [f"{found.stages_ms[name]:.1f}" if name in found.stages_ms else "" for name in STAGES]
        table.add_row(arm, f"{found.ndcg:.3f}", f"{found.recall:.3f}", f"{found.mrr:.3f}", f"{found.ms:.1f}", *stages)
    console.print(f"questions: {report.questions}, passages: {report.passages}\n")
    console.print(table)


def _print_answers(report: AnswersReport) -> None:
    removed = report.removed
    rows = [
        ("answered with a citation", report.answered),
        ("hold the expected text", report.contains),
        ("asked back", report.asked_back),
        ("citations that name a right passage", report.citation_precision),
        (f"not answered without their passages ({removed.questions} questions)", removed.not_answered),
    ]
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, share in rows:
        table.add_row(name, "-" if share is None else f"{share:.1%}")
    console.print(f"questions: {report.questions}, passages: {report.passages}\n")
    console.print(table)
