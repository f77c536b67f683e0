"""The bytes of the native stream, exactly."""

from hypothesis import given
from hypothesis import strategies as st

from backend.protocols.native import DONE, PING, frame
from backend.schemas.chat import ContentEvent, encode_event


def test_a04_an_event_is_one_data_line_and_a_blank_line():
    assert frame(b'{"seq":1}') == b'data: {"seq":1}\n\n'
    assert frame(b'{"seq":7}', 7) == b'id: 7\ndata: {"seq":7}\n\n'
    assert DONE == b"data: [DONE]\n\n"
    assert PING == b": ping\n\n"


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("\n\r\u2028\x85\x0b\x1e")))
def test_a04_no_text_makes_a_second_line(content: str):
    data = frame(encode_event(ContentEvent(content=content)))
    assert data.count(b"\n") == 2
    assert data.endswith(b"}\n\n")
    assert len(data.decode().rstrip("\n").splitlines()) == 1
