"""What the commands print: results on standard output, one line of error on standard error.

Texts come from servers and documents, so nothing in them may steer the terminal or the printer.
"""

import re
import sys
from typing import NoReturn

import typer
from rich.console import Console

console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # OSC and other strings
    r"|\x1b[ -/]*[0-~]"
)
_UNSEEN = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""Control characters, changes of writing direction (text could pose as other text), lone surrogates."""
_CONTROL = re.compile(f"[{_UNSEEN}]")


def plain(text: str) -> str:
    """``text`` without terminal sequences and control characters; line ends and tabs stay.

    A sequence that comes in two pieces loses its control character, which makes the rest harmless, visible text.
    """
    return _CONTROL.sub("", _SEQUENCE.sub("", text))


def one_line(text: str) -> str:
    """``plain(text)`` with every run of white space as one space."""
    return plain(" ".join(_SEQUENCE.sub("", text).split()))


def escape_json(text: str) -> str:
    """JSON text with what :func:`plain` would remove as ``\\uXXXX``; JSON has such characters in strings only."""
    return re.sub(r"[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", _escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def complain(text: str) -> None:
    """One line on standard error."""
    errors.print(f"citewire: {one_line(text)}", style="red")


def fail(text: str) -> NoReturn:
    """One line on standard error and exit code 1."""
    complain(text)
    raise typer.Exit(1)


def confirm(question: str) -> None:
    """Returns when the user says yes at a terminal; otherwise exit code 1."""
    if not sys.stdin.isatty():
        fail("no terminal to ask for confirmation; use --yes")
    if not typer.confirm(one_line(question), err=True):
        raise typer.Exit(1)
