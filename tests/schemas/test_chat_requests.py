import pytest
from pydantic import ValidationError

from backend.schemas.chat import ChatRequest


@pytest.mark.parametrize(
    "message", ["", " \n\t", "\x00", "\u200b", "\u200b \ufeff", "\u2060", "\u202e\u202d", "\u2028"]
)
def test_d01_a_message_of_which_nothing_can_be_seen_is_blank(message: str):
    with pytest.raises(ValidationError):
        ChatRequest(message=message)


@pytest.mark.parametrize("message", ["?", "\U0001f468\u200d\U0001f469", "\u200bwhy", "\u05d0\u200f"])
def test_a_message_with_anything_to_see_is_asked(message: str):
    assert ChatRequest(message=message).message == message
