"""``citewire ingest``."""

import os
from pathlib import Path
from typing import Annotated

import httpx
import typer

from backend.cli.client import ServerRefused, answer_of, connect, explained
from backend.cli.credentials import ConfigDirOption, TokenOption, UrlOption, resolve
from backend.cli.output import complain, console, one_line

UPLOAD_SECONDS = 900.0
"""The answer comes when the document can be asked about; parsing alone may take minutes."""


class _Unreadable(Exception):
    """The file cannot be sent; the text says why."""


def ingest(
    files: Annotated[list[Path], typer.Argument(help="PDF, Markdown or text files.", metavar="FILE...")],
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
    """Add documents to the library; one that has the name of another replaces it."""
    form = {} if shared is None else {"visibility": "shared" if shared else "private"}
    failed = False
    with explained(), connect(resolve(url, token, config_dir), read_seconds=UPLOAD_SECONDS) as client:
        for path in files:
            try:
                console.print(one_line(f"{path}: {_upload(client, path, form)} chunks"))
            except _Unreadable as error:
                complain(f"{path}: {error}")
                failed = True
            except ServerRefused as error:
                if error.status == 401:
                    raise  # the others would get the same answer
                complain(f"{path}: {error.code}: {error.detail}")
                failed = True
    if failed:
        raise typer.Exit(1)


def _upload(client: httpx.Client, path: Path, form: dict[str, str]) -> int:
    """The number of chunks. Raises :class:`_Unreadable`, :class:`ServerRefused` and what the transport raises."""
    if path.exists() and not path.is_file():
        raise _Unreadable("not a file")
    name = os.fsencode(path.name).decode("utf-8", "replace")
    try:
        with path.open("rb") as file:
            answer = answer_of(client.post("/documents/upload", files={"file": (name, file)}, data=form))
    except OSError as error:
        raise _Unreadable(error.strerror or type(error).__name__) from error
    return int(answer["chunks_processed"])
