"""``citewire ask``: steps as they happen, the answer as it is written, and its sources."""

import json
import signal
import threading
import uuid
from dataclasses import asdict
from types import FrameType
from typing import Annotated, Any, Self

import httpx
import typer

from backend.cli.answer import Answer
from backend.cli.client import ServerRefused, connect, explained
from backend.cli.credentials import ConfigDirOption, TokenOption, UrlOption, resolve
from backend.cli.output import complain, console, errors, escape_json, fail, one_line, plain
from backend.cli.run import Run

INTERRUPTED = 130
STREAM_SILENCE_SECONDS = 20.0
"""The server sends a sign of life every 5 seconds."""


def ask(
    question: Annotated[str, typer.Argument(help="What you want to know.")],
    session: Annotated[
        str | None,
        typer.Option(help="Go on with this conversation. Without it every question begins a new one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object at the end instead of text.")] = False,
    url: UrlOption = None,
    token: TokenOption = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """Ask about the documents. Ctrl-C stops the answer; what there is of it stays."""
    answer = Answer(session or f"cli-{uuid.uuid4()}")
    view = _Silent() if as_json else _Text()
    with explained(), connect(resolve(url, token, config_dir), read_seconds=STREAM_SILENCE_SECONDS) as client:
        interrupted = _follow(Run(client, question, answer.session_id), answer, view)
    view.end(answer)
    if as_json:
        typer.echo(escape_json(json.dumps(asdict(answer), ensure_ascii=False)))
    _finish(answer, interrupted=interrupted)


class _Silent:
    """Shows nothing."""

    def show(self, event: dict[str, Any], before: str, after: str) -> None: ...

    def end(self, answer: Answer) -> None: ...


class _Text(_Silent):
    """Steps dim, the answer as it comes, then the numbered sources."""

    def __init__(self) -> None:
        self._open_line = False

    def show(self, event: dict[str, Any], before: str, after: str) -> None:
        """``before`` and ``after`` are the answer's text without and with this event."""
        if event["type"] == "rag_step":
            self._close_line()
            console.print(_step_line(event["step"]), style="dim")
        elif after.startswith(before):
            self._write(after[len(before) :])
        else:  # the stored text replaces what was shown
            self._close_line()
            self._write(after)

    def end(self, answer: Answer) -> None:
        self._close_line()
        if answer.hitl is not None:
            _print_question(answer.hitl)
        if answer.citations:
            console.print("\nSources")
        for citation in answer.citations:
            console.print(_source_line(citation))
        if answer.run_id is not None:
            console.print(f"\nSession {one_line(answer.session_id)}", style="dim")

    def _write(self, text: str) -> None:
        shown = plain(text)
        if shown:
            console.print(shown, end="")
            self._open_line = not shown.endswith("\n")

    def _close_line(self) -> None:
        if self._open_line:
            console.print()
            self._open_line = False


def _follow(run: Run, answer: Answer, view: _Silent) -> bool:
    """Show the run to its end; True when the user wanted it stopped on the way."""
    with _StopOnInterrupt(run) as interrupt:
        try:
            _show(run, answer, view)
        except KeyboardInterrupt:  # before the server had the question, or for the second time
            raise typer.Exit(INTERRUPTED) from None
        return interrupt.wanted


class _StopOnInterrupt:
    """Ctrl-C tells the server to stop, while the stream is read on to its end: no event is lost by the interruption.

    The second Ctrl-C, or one before the run is known, is a ``KeyboardInterrupt``.
    """

    def __init__(self, run: Run) -> None:
        self.wanted = False
        self._run = run
        self._previous: Any = None

    def __enter__(self) -> Self:
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.wanted or self._run.run_id is None:
            raise KeyboardInterrupt
        self.wanted = True
        threading.Thread(target=self._stop, daemon=True).start()

    def _stop(self) -> None:
        errors.print("stopping …", style="dim")
        try:
            self._run.stop()
        except (httpx.TransportError, ServerRefused):
            complain("the server could not be told to stop")


def _show(run: Run, answer: Answer, view: _Silent) -> None:
    resumed = 0
    for event in run.events():
        if run.resumed != resumed:
            errors.print("connection lost, resumed", style="dim")
            resumed = run.resumed
        before = answer.response
        answer.add(event)
        view.show(event, before, answer.response)


def _finish(answer: Answer, *, interrupted: bool) -> None:
    if interrupted and answer.status != "completed":
        complain("stopped")
        raise typer.Exit(INTERRUPTED)
    if answer.error is not None:
        fail(f"{answer.error['content']} ({answer.error['code']})")
    if answer.status != "completed":
        fail(f"the answer is not complete ({answer.status or 'unknown'})")


def _step_line(step: dict[str, Any]) -> str:
    text = f"{step['icon']} {step['label']}" + (f" · {step['detail']}" if step.get("detail") else "")
    return one_line(text)


def _source_line(citation: dict[str, Any]) -> str:
    page = citation.get("page_number")
    place = f"[{citation['index']}] {citation['filename']}" + (f", page {page}" if page is not None else "")
    return one_line(f'{place}: "{citation["quote"]}"')


def _print_question(hitl: dict[str, Any]) -> None:
    console.print(plain(hitl["prompt"]))
    for option in hitl["options"]:
        console.print(f"- {one_line(option)}")
