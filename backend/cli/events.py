"""Reading a stream of events: bytes in, events out."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, cast

MAX_LINE_BYTES = 64 * 1024 * 1024
_DATA = b"data: "
_END = b"[DONE]"


class StreamCut(Exception):
    """The bytes ended before the end marker; the stream can be taken up again after the last event."""


class StreamUnreadable(Exception):
    """What comes is not a stream of events."""


def read_events(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The events of a stream, each with ``type`` and ``seq``, up to its ``[DONE]``.

    Lines end with LF only: the libraries' own line splitting also cuts at U+2028 and the like, inside an event.
    Comments, ids and unknown lines are skipped. Raises :class:`StreamCut` when the pieces end before ``[DONE]``,
    :class:`StreamUnreadable` when an event is no JSON object or longer than ``MAX_LINE_BYTES``.
    """
    for line in _lines(pieces):
        if not line.startswith(_DATA):
            continue
        data = line[len(_DATA) :]
        if data == _END:
            return
        yield _event(data)
    raise StreamCut


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    size = 0
    for piece in pieces:
        *whole, last = piece.split(b"\n")
        for line in whole:
            yield b"".join([*rest, line])
            rest, size = [], 0
        rest.append(last)
        size += len(last)
        if size > MAX_LINE_BYTES:
            raise StreamUnreadable


def _event(data: bytes) -> dict[str, Any]:
    try:
        event: Any = json.loads(data)
    except ValueError as error:
        raise StreamUnreadable from error
    if not isinstance(event, dict):
        raise StreamUnreadable
    values = cast(dict[str, Any], event)
    if not isinstance(values.get("type"), str) or not isinstance(values.get("seq"), int):
        raise StreamUnreadable
    return values
