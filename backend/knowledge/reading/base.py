"""What the readers of all kinds share: the limits they keep, what they give back and how they refuse."""

from dataclasses import dataclass


class Refused(Exception):
    """The file cannot be used; ``code`` is the error code that the client gets.

    ``total_pages`` is how many pages were seen.
    """

    def __init__(self, code: str, total_pages: int | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.total_pages = total_pages


@dataclass(frozen=True, slots=True)
class Limits:
    """What one file may hold: pages or slides, table cells, and bytes once unpacked."""

    max_pages: int
    max_cells: int
    max_inflated_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """Text of one page or slide; ``number`` is ``None`` where the format has neither."""

    number: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """``total_pages`` counts blank pages too; ``replaced`` the characters that could not be read."""

    parts: list[Part]
    total_pages: int | None = None
    replaced: int = 0
