"""``citewire ask``: steps as they happen, the answer as it is written, and its sources."""

import json
import uuid
from dataclasses import asdict
from typing import Annotated

import typer

from backend.cli.answer import Answer
from backend.cli.client import connect, explained
from backend.cli.collection import CollectionOption
from backend.cli.credentials import ConfigDirOption, TokenOption, UrlOption, resolve
from backend.cli.following import STREAM_SILENCE_SECONDS, SilentView, TextView, follow
from backend.cli.output import complain, console, escape_json, fail, one_line
from backend.cli.run import Run

INTERRUPTED = 130


def ask(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    session: Annotated[
        str | None,
        typer.Option(help="Go on with this conversation. Without it every question begins a new one."),
    ] = None,
    collection: CollectionOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object at the end instead of text.")] = False,
    url: UrlOption = None,
    token: TokenOption = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """Ask about the documents. Ctrl-C stops the answer; what there is of it stays."""
    answer = Answer(session or f"cli-{uuid.uuid4()}")
    view = SilentView() if as_json else TextView()
    with explained(), connect(resolve(url, token, config_dir), read_seconds=STREAM_SILENCE_SECONDS) as client:
        try:
            interrupted = follow(Run.ask(client, question, answer.session_id, collection or ()), answer, view)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    view.end(answer)
    if as_json:
        typer.echo(escape_json(json.dumps(asdict(answer), ensure_ascii=False)))
    elif answer.message_id is not None:
        text = f"Session {answer.session_id} · how it was found: citewire trace {answer.message_id}"
        console.print(f"\n{one_line(text)}", style="dim")
        if answer.hitl is not None:
            console.print(one_line(f"Answer it: citewire ask --session {answer.session_id} NUMBER|TEXT"), style="dim")
    _finish(answer, interrupted=interrupted)


def _finish(answer: Answer, *, interrupted: bool) -> None:
    if interrupted and answer.status != "completed":
        complain("stopped")
        raise typer.Exit(INTERRUPTED)
    if answer.error is not None:
        fail(f"{answer.error['content']} ({answer.error['code']})")
    if answer.status != "completed":
        fail(f"the answer is not complete ({answer.status or 'unknown'})")
