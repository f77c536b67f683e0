"""``citewire ingest``: files and folders into the library, with what became of each."""

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from backend.cli.client import ServerRefused, ServerUnreachable, answer_of, connect, explained
from backend.cli.credentials import ConfigDirOption, TokenOption, UrlOption, resolve
from backend.cli.files import Found, find_files
from backend.cli.output import complain, console, one_line

UPLOAD_SECONDS = 900.0
"""The answer comes when the document can be asked about; parsing alone may take minutes."""
INTERRUPTED = 130
READY = "ready"


class _NotAdded(Exception):
    """The file is not in the library. ``code`` is the server's, or ``unreadable`` for one that cannot be sent."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def ingest(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files, and folders to search for files of the supported types; hidden ones are skipped.",
            metavar="PATH...",
        ),
    ],
    shared: Annotated[
        bool | None,
        typer.Option(
            "--shared/--private", help="Who sees them; by default everyone if you are an admin, else only you."
        ),
    ] = None,
    url: UrlOption = None,
    token: TokenOption = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """Add documents to the library; one that has the name of another replaces it. Exit code 1 if any failed."""
    form = {} if shared is None else {"visibility": "shared" if shared else "private"}
    with explained():
        credentials = resolve(url, token, config_dir)
    report = _Report()
    try:
        with explained(), connect(credentials, read_seconds=UPLOAD_SECONDS) as client, report.progress:
            _ingest_all(client, find_files(paths), form, report)
    except KeyboardInterrupt:
        report.summary()
        complain("stopped; what is ready stays in the library")
        raise typer.Exit(INTERRUPTED) from None
    report.summary()
    if report.failed:
        raise typer.Exit(1)


def _ingest_all(client: httpx.Client, found: list[Found], form: dict[str, str], report: "_Report") -> None:
    report.begin(found)
    for item in found:
        try:
            if item.problem is not None:
                raise _NotAdded(item.problem.code, item.problem.text)
            report.ready(item, _upload(client, item, form))
        except _NotAdded as error:
            report.not_added(item, error)
        except (httpx.TransportError, ServerUnreachable):
            report.summary()
            raise


def _upload(client: httpx.Client, item: Found, form: dict[str, str]) -> int:
    """The number of chunks. Raises :class:`_NotAdded` and what concerns every other file too."""
    try:
        with item.path.open("rb") as file:
            answer = answer_of(client.post("/documents/upload", files={"file": (item.name, file)}, data=form))
    except OSError as error:
        raise _NotAdded("unreadable", error.strerror or type(error).__name__) from error
    except ServerRefused as error:
        if error.status == 401:
            raise  # the others would get the same answer
        raise _NotAdded(error.code, error.detail) from error
    return int(answer["chunks_processed"])


class _Report:
    """Plain lines, or at a terminal a bar with rate and remaining time; failures are lines either way."""

    def __init__(self) -> None:
        self.progress = Progress(
            TextColumn("{task.fields[done]}/{task.fields[files]} files"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            redirect_stderr=sys.stderr.isatty(),
        )
        self._task: TaskID | None = None
        self._chunks = 0
        self._codes: Counter[str] = Counter()

    @property
    def failed(self) -> bool:
        return any(code != READY for code in self._codes)

    def begin(self, found: list[Found]) -> None:
        if not found:
            complain("nothing to add: no file of a supported type")
        total = sum(item.size for item in found)
        self._task = self.progress.add_task("", total=total, done=0, files=len(found))

    def ready(self, item: Found, chunks: int) -> None:
        if not console.is_terminal:
            console.print(one_line(f"{item.path}: {chunks} chunks"))
        self._chunks += chunks
        self._count(item, READY)

    def not_added(self, item: Found, error: _NotAdded) -> None:
        complain(f"{item.path}: {error.code}: {error}")
        self._count(item, error.code)

    def _count(self, item: Found, code: str) -> None:
        self._codes[code] += 1
        if self._task is not None:
            self.progress.update(self._task, advance=item.size, done=self._codes.total())

    def summary(self) -> None:
        """A table of the ends, when there was more than one file."""
        self.progress.stop()
        if self._codes.total() < 2:
            return
        table = Table("result", "files", "chunks", box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for code, files in sorted(self._codes.items(), key=lambda item: (item[0] != READY, item[0])):
            table.add_row(one_line(code), str(files), str(self._chunks) if code == READY else "")
        console.print()
        console.print(table)
