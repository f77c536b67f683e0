"""Server-sent events from bytes, tolerant where providers are careless."""

from collections.abc import Iterator
from typing import NamedTuple

_FIELDS = (b"data", b"event", b"id", b"retry")


class Event(NamedTuple):
    """One event. ``name`` is its type; ``stray`` marks a line that is no SSE at all (an error text, HTML)."""

    name: str
    data: bytes


STRAY = "stray"


class EventDecoder:
    """Decodes a stream that arrives in pieces; LF and CRLF end lines, comments are dropped.

    Unlike the standard, a line that is not a known field is handed out as a ``stray`` event, for that is how
    gateways report failures inside a stream, and the last event counts without its blank line.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that ``piece`` completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            yield from self._line(line.removesuffix(b"\r"))

    def close(self) -> Iterator[Event]:
        """What is left at the end of the stream."""
        yield from self._line(self._rest.removesuffix(b"\r"))
        self._rest = b""
        yield from self._line(b"")

    @property
    def pending(self) -> int:
        """Bytes held back until their event is complete."""
        return len(self._rest) + sum(map(len, self._data))

    def _line(self, line: bytes) -> Iterator[Event]:
        if not line.strip():
            if self._data:
                yield Event(self._name, b"\n".join(self._data))
            self._name, self._data = "", []
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode(errors="replace")
        elif field and field not in _FIELDS:
            yield Event(STRAY, line)
