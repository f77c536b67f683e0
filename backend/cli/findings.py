"""What a check of ``citewire doctor`` found."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: ``what`` was looked at and what was found. ``remedy`` is what to type."""

    state: State
    what: str
    text: str
    remedy: str | None = None


def ok(what: str, text: str) -> Finding:
    """Nothing to do."""
    return Finding("ok", what, text)


def warn(what: str, text: str, remedy: str | None = None) -> Finding:
    """It works, but."""
    return Finding("warn", what, text, remedy)


def failed(what: str, text: str, remedy: str | None = None) -> Finding:
    """It does not work."""
    return Finding("fail", what, text, remedy)
