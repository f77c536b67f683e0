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

from backend.cli.client import ServerUnreachable, connect, explained
from backend.cli.credentials import ConfigDirOption, TokenOption, UrlOption, resolve
from backend.cli.files import Found, find_files
from backend.cli.output import complain, console, one_line
from backend.cli.uploading import Added, NotAdded, Uploads

UPLOAD_SECONDS = 900.0
"""A large file may take long to be sent."""
PARALLEL = 4
INTERRUPTED = 130
READY, UNCHANGED = "ready", "unchanged"


def ingest(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="Files, and folders to search for files of the supported types; hidden ones are skipped.",
            metavar="PATH...",
        ),
    ],
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include", metavar="GLOB", help="Of folders only these files, by name or path in it; may be repeated."
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="GLOB", help="Of folders not these files, as --include; may be repeated."),
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=32, help="Files that are under way at once.")
    ] = PARALLEL,
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
    """Add documents to the library; one that has the name of another replaces it, an unchanged one costs nothing.

    Run it again after an interruption: what is there is not made twice. Exit code 1 if any file failed.
    """
    form = {} if shared is None else {"visibility": "shared" if shared else "private"}
    with explained():
        credentials = resolve(url, token, config_dir)
    report = _Report()
    try:
        with explained(), connect(credentials, read_seconds=UPLOAD_SECONDS) as client, report.progress:
            found = find_files(paths, include or (), exclude or ())
            report.begin(found)
            with Uploads(client, form, parallel, report.ended) as uploads:
                _report_all(uploads, found, report)
    except KeyboardInterrupt:
        report.summary()
        complain("stopped; what was sent is still worked on, run the same command again for the rest")
        raise typer.Exit(INTERRUPTED) from None
    report.summary()
    if report.failed:
        raise typer.Exit(1)


def _report_all(uploads: Uploads, found: list[Found], report: "_Report") -> None:
    """Lines come in the order of the files, whichever is ready first."""
    try:
        for item, result in uploads.results(found):
            report.add(item, result)
    except (httpx.TransportError, ServerUnreachable):
        report.summary()
        raise


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
        self._chunks: Counter[str] = Counter()
        self._codes: Counter[str] = Counter()
        self._done = 0

    @property
    def failed(self) -> bool:
        return any(code not in (READY, UNCHANGED) for code in self._codes)

    def begin(self, found: list[Found]) -> None:
        if not found:
            complain("nothing to add: no file of a supported type")
        total = sum(item.size for item in found)
        self._task = self.progress.add_task("", total=total, done=0, files=len(found))

    def ended(self, item: Found) -> None:
        """Moves the bar; called as files end, in any order and one at a time."""
        self._done += 1
        if self._task is not None:
            self.progress.update(self._task, advance=item.size, done=self._done)

    def add(self, item: Found, result: Added | NotAdded) -> None:
        if isinstance(result, NotAdded):
            complain(f"{item.path}: {result.code}: {result}")
            self._codes[result.code] += 1
            return
        code = UNCHANGED if result.unchanged else READY
        if not console.is_terminal:
            console.print(one_line(f"{item.path}: {UNCHANGED if result.unchanged else f'{result.chunks} chunks'}"))
        self._codes[code] += 1
        self._chunks[code] += result.chunks

    def summary(self) -> None:
        """A table of the ends, when there was more than one file."""
        self.progress.stop()
        if self._codes.total() < 2:
            return
        table = Table("result", "files", "chunks", box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for code, files in sorted(self._codes.items(), key=lambda item: (item[0] not in self._chunks, item[0])):
            table.add_row(one_line(code), str(files), str(self._chunks[code]) if code in self._chunks else "")
        console.print()
        console.print(table)
