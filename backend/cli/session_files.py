"""The files of a conversation at the terminal: put in, listed, saved, taken out."""

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from backend.cli.client import answer_of, check, connect
from backend.cli.credentials import Credentials
from backend.cli.output import complain, console, one_line
from backend.infra.filenames import safe_filename

TRANSFER_SECONDS = 120.0
"""Of silence while a file is sent or fetched."""
Json = dict[str, Any]


class SessionFiles:
    """What the commands of a conversation do with its files. Every call may raise :class:`ServerRefused` and
    :class:`ServerUnreachable`."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def attach(self, session_id: str, argument: str) -> None:
        """Put the files that ``argument`` names, as a shell would read it, into the conversation."""
        paths = _paths(argument)
        if not paths:
            complain("/attach FILE… (a name with spaces in quotes)")
            return
        with ExitStack() as stack:
            try:
                files = [("file", (path.name, stack.enter_context(path.open("rb")))) for path in paths]
            except OSError as error:
                complain(f"{error.filename}: {error.strerror}")
                return
            client = stack.enter_context(connect(self._credentials, read_seconds=TRANSFER_SECONDS))
            added = answer_of(client.post(f"/sessions/{session_id}/uploads", files=files))["files"]
        for item in added:
            console.print(f"attached: {_line(item)}", style="dim")

    def show(self, session_id: str) -> None:
        """Both the files that were put in and, numbered for :meth:`save`, those that the assistant handed over."""
        with connect(self._credentials) as client:
            uploads: list[Json] = answer_of(client.get(f"/sessions/{session_id}/uploads"))["files"]
            artifacts = _artifacts(client, session_id)
        for item in uploads:
            console.print(f"     {_line(item)}")
        for number, item in enumerate(artifacts, start=1):
            console.print(f"{number:>3}. {_line(item)}")
        if not uploads and not artifacts:
            console.print("no files in this conversation")

    def detach(self, session_id: str, name: str) -> None:
        """Take a file out of the conversation."""
        if not name:
            complain("/detach NAME")
            return
        with connect(self._credentials) as client:
            gone = answer_of(client.delete(httpx.URL(path=f"/sessions/{session_id}/uploads/{name}")))
        console.print(one_line(f"removed: {gone['filename']}"), style="dim")

    def save(self, session_id: str, argument: str) -> None:
        """Fetch a file that the assistant handed over, by number or name, into a folder: by default this one."""
        wanted, *rest = _words(argument) or [""]
        folder = Path(rest[0]).expanduser() if rest else Path()
        with connect(self._credentials, read_seconds=TRANSFER_SECONDS) as client:
            item = _chosen(_artifacts(client, session_id), wanted)
            if item is None or not folder.is_dir():
                complain("/save NUMBER|NAME [FOLDER]; /files lists what there is")
                return
            with client.stream("GET", item["url"]) as response:
                if not response.is_success:
                    response.read()
                check(response)
                target = _write(folder, safe_filename(item["filename"]), response)
        if target is not None:
            console.print(one_line(f"saved: {target}"), style="dim")


def _write(folder: Path, name: str, response: httpx.Response) -> Path | None:
    """The new file; one that is there is never written over."""
    for number in range(1, 1_000):
        target = folder / (name if number == 1 else f"{number}-{name}")
        try:
            with target.open("xb") as file:
                for piece in response.iter_bytes():
                    file.write(piece)
        except FileExistsError:
            continue
        except OSError as error:
            complain(f"{error.filename}: {error.strerror}")
            return None
        return target
    complain(f"{folder}: too many files of that name")
    return None


def _artifacts(client: httpx.Client, session_id: str) -> list[Json]:
    return answer_of(client.get(f"/sessions/{session_id}/artifacts"))["artifacts"]


def _chosen(artifacts: Sequence[Json], wanted: str) -> Json | None:
    if wanted.isdecimal() and 1 <= int(wanted) <= len(artifacts):
        return artifacts[int(wanted) - 1]
    return next((item for item in artifacts if wanted and item["filename"] == wanted), None)


def _paths(argument: str) -> list[Path]:
    return [Path(word).expanduser() for word in _words(argument)]


def _words(argument: str) -> list[str]:
    try:
        return shlex.split(argument)
    except ValueError:  # a quote that is not closed
        return []


def _line(item: Json) -> str:
    return one_line(f"{item['filename']} ({item['mime_type']}, {item['size']} bytes)")
