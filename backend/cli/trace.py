"""``citewire trace``: the path of one answer, as it was stored."""

import json
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer
from rich.console import Console

from backend.cli.client import ServerRefused, answer_of, check, connect, explained
from backend.cli.credentials import ConfigDirOption, TokenOption, UrlOption, resolve
from backend.cli.events import StreamCut, StreamUnreadable, read_events
from backend.cli.output import console, escape_json, fail
from backend.cli.trace_tree import message_tree

Json = dict[str, Any]
UNBROKEN = 10_000
"""Columns of what is no terminal: a file or another program gets its lines whole."""


def trace(
    message_id: Annotated[str, typer.Argument(metavar="MESSAGE_ID", help="An answer: shown by ask, chat and the API.")],
    as_json: Annotated[bool, typer.Option("--json", help="The stored message as one JSON object.")] = False,
    url: UrlOption = None,
    token: TokenOption = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """How an answer was found: each stage with its counts and passages, and what it dropped.

    Times are shown where they are stored: those of the steps for as long as the server keeps a turn's events.
    """
    with explained(), connect(resolve(url, token, config_dir)) as client:
        message = _message(client, message_id)
        if as_json:
            typer.echo(escape_json(json.dumps(message, ensure_ascii=False)))
            return
        if message["type"] != "ai":
            fail("this message is a question; give the id of its answer")
        run = _run_of(client, message)
        steps = _steps(client, message) if run is not None and run["status"] != "running" else []
    wide = Console(width=None if console.is_terminal else UNBROKEN, highlight=False, markup=False, emoji=False)
    wide.print(message_tree(message, _seconds(run), steps))


def _message(client: httpx.Client, message_id: str) -> Json:
    try:
        return answer_of(client.get(f"/chat/messages/{quote(message_id, safe='')}"))
    except ServerRefused as error:
        if error.status in {404, 422}:
            fail(f"you have no answer with the id {message_id}")
        raise


def _run_of(client: httpx.Client, message: Json) -> Json | None:
    if message.get("run_id") is None:
        return None
    try:
        return answer_of(client.get(f"/chat/runs/{message['run_id']}"))
    except ServerRefused as error:
        if error.status != 404:
            raise
        return None


def _steps(client: httpx.Client, message: Json) -> list[Json]:
    """The retrieval steps with their times, if the events of the run are still there."""
    with client.stream("GET", f"/chat/runs/{message['run_id']}/stream") as response:
        if not response.is_success:
            response.read()
            check(response)
        try:
            return [event["step"] for event in read_events(response.iter_raw()) if event["type"] == "rag_step"]
        except (StreamCut, StreamUnreadable):
            return []


def _seconds(run: Json | None) -> float | None:
    """How long the run took, if it has ended."""
    if run is None or run.get("finished_at") is None:
        return None
    begin, end = (datetime.fromisoformat(run[name]) for name in ("created_at", "finished_at"))
    return (end - begin).total_seconds()
