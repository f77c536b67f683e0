"""A running answer in the terminal: shown to its end, stopped by Ctrl-C."""

import signal
import threading
from types import FrameType
from typing import Any, Self

import httpx

from backend.cli.answer import Answer
from backend.cli.client import ServerRefused
from backend.cli.output import complain, console, errors, one_line, plain
from backend.cli.run import Run

STREAM_SILENCE_SECONDS = 20.0
"""The server sends a sign of life every 5 seconds."""
STOP_SECONDS = 5.0
"""A stop is answered after a second at most."""


class SilentView:
    """Shows nothing."""

    def show(self, event: dict[str, Any], before: str, after: str) -> None: ...

    def end(self, answer: Answer) -> None: ...


class TextView(SilentView):
    """Steps dim, the answer as it comes, then the numbered sources."""

    def __init__(self) -> None:
        self._open_line = False
        self._artifacts: list[str] = []

    def show(self, event: dict[str, Any], before: str, after: str) -> None:
        """``before`` and ``after`` are the answer's text without and with this event."""
        if event["type"] == "rag_step":
            self.close_line()
            console.print(_step_line(event["step"]), style="dim")
        elif event["type"] == "artifacts":
            self._artifacts = event["artifacts"]
        elif after.startswith(before):
            self._write(after[len(before) :])
        else:  # the stored text replaces what was shown
            self.close_line()
            self._write(after)

    def end(self, answer: Answer) -> None:
        self.close_line()
        if answer.hitl is not None:
            print_question(answer.hitl)
        print_sources(answer.citations)
        if self._artifacts:
            names = ", ".join(path.rpartition("/")[2] for path in self._artifacts)
            console.print(f"\nFiles: {one_line(names)}; /files and /save in citewire chat")

    def close_line(self) -> None:
        if self._open_line:
            console.print()
            self._open_line = False

    def _write(self, text: str) -> None:
        shown = plain(text)
        if shown:
            console.print(shown, end="")
            self._open_line = not shown.endswith("\n")


def follow(run: Run, answer: Answer, view: SilentView) -> bool:
    """Show the run to its end; True when the user wanted it stopped on the way.

    Raises ``KeyboardInterrupt`` when that was before the server had the question, or for the second time.
    """
    with _StopOnInterrupt(run) as interrupt:
        _show(run, answer, view)
        return interrupt.wanted


class _StopOnInterrupt:
    """Ctrl-C tells the server to stop, while the stream is read on to its end: no event is lost by the interruption.

    The second Ctrl-C, or one before the run is known, is a ``KeyboardInterrupt``.
    """

    def __init__(self, run: Run) -> None:
        self.wanted = False
        self._run = run
        self._previous: Any = None
        self._stopping: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        signal.signal(signal.SIGINT, self._previous)
        if self._stopping is not None and exc[0] is None:
            self._stopping.join(STOP_SECONDS)  # its answer may come just after the end of the stream

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.wanted or self._run.run_id is None:
            raise KeyboardInterrupt
        self.wanted = True
        self._stopping = threading.Thread(target=self._stop, daemon=True)
        self._stopping.start()

    def _stop(self) -> None:
        errors.print("stopping …", style="dim")
        try:
            self._run.stop()
        except (httpx.TransportError, ServerRefused):
            complain("the server could not be told to stop")


def _show(run: Run, answer: Answer, view: SilentView) -> None:
    resumed = 0
    for event in run.events():
        if run.resumed != resumed:
            errors.print("connection lost, resumed", style="dim")
            resumed = run.resumed
        before = answer.response
        answer.add(event)
        view.show(event, before, answer.response)


def print_question(hitl: dict[str, Any]) -> None:
    """A question back to the user, its options numbered."""
    console.print(plain(hitl["prompt"]))
    for number, option in enumerate(hitl["options"], start=1):
        console.print(f"{number}. {one_line(option)}")


def print_sources(citations: list[dict[str, Any]]) -> None:
    """What the numbers in an answer mean; nothing when it has none."""
    if citations:
        console.print("\nSources")
    for citation in citations:
        console.print(source_line(citation))


def source_line(citation: dict[str, Any]) -> str:
    """``[1] file, page 17: "quote"``."""
    return one_line(f'[{citation["index"]}] {place(citation)}: "{citation["quote"]}"')


def place(chunk: dict[str, Any]) -> str:
    """File and, where there are any, page of a citation or a chunk."""
    page = chunk.get("page_number")
    return f"{chunk['filename']}" + (f", page {page}" if page is not None else "")


def _step_line(step: dict[str, Any]) -> str:
    text = f"{step['icon']} {step['label']}" + (f" · {step['detail']}" if step.get("detail") else "")
    return one_line(text)
