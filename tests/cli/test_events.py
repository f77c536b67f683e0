"""The reader of streams, on bytes alone."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.cli import events
from backend.cli.events import StreamCut, StreamUnreadable, read_events
from backend.protocols.native import DONE, PING, frame
from backend.schemas.chat import ContentEvent, encode_event


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    """``stream`` cut at these places."""
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(edges)]


@given(st.lists(st.text(), max_size=5), st.lists(st.integers(min_value=0), max_size=12), st.booleans(), st.booleans())
def test_every_cutting_of_the_bytes_gives_the_same_events(
    texts: list[str], cuts: list[int], with_ids: bool, raw: bool
) -> None:
    sent = [{"type": "content", "seq": seq, "content": text} for seq, text in enumerate(texts, start=1)]
    stream = b""
    for event in sent:
        encoded = encode_event(ContentEvent(seq=event["seq"], content=event["content"]))
        if raw:  # another server may send separators as they are
            encoded = json.dumps(event, ensure_ascii=False).encode()
        stream += PING + frame(encoded, event["seq"] if with_ids else None)
    assert list(read_events(pieces(stream + DONE + b"data: ignored\n\n", cuts))) == sent


def test_line_separators_inside_an_event_do_not_end_it() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf"
    data = json.dumps({"type": "content", "seq": 1, "content": text}, ensure_ascii=False).encode()
    assert [event["content"] for event in read_events([frame(data), DONE])] == [text]


@pytest.mark.parametrize("stream", [b"", PING, b'data: {"type":"content","seq":1,"content":"a"}\n\n', b"data: [DONE]"])
def test_an_end_without_the_mark_is_a_cut(stream: bytes) -> None:
    with pytest.raises(StreamCut):
        list(read_events([stream]))


@pytest.mark.parametrize("data", [b"{", b"[]", b"null", b'{"seq":1}', b'{"type":"content"}', b'{"type":1,"seq":1}'])
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(StreamUnreadable):
        list(read_events([frame(data), DONE]))


def test_a_line_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_LINE_BYTES", 1000)
    short: dict[str, Any] = {"type": "content", "seq": 1, "content": "x" * 500}
    assert list(read_events([frame(json.dumps(short).encode())] * 5 + [DONE])) == [short] * 5
    with pytest.raises(StreamUnreadable):
        list(read_events(b"x" * 100 for _ in range(1000)))
