"""What may reach a terminal."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.cli.output import escape_json, one_line, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mred\x1b[0m b", "ared b"),
        ("\x1b]0;title\x07x\x1b]8;;http://e\x1b\\link", "xlink"),
        ("\x9b2Jx\x9d0;t\x9cy", "xy"),
        ("\x1b[", ""),
        ("\x1b", ""),
        ("31m of a sequence cut in two", "31m of a sequence cut in two"),
        ("\x1bP$q\x1b\\x\x1bcy", "xy"),
        ("one\r\ntwo\rthree\tfour\x08\x7f\x00", "one\ntwothree\tfour"),
        ("\u202eevil\u202c \u2066x\u2069", "evil x"),
        ("\ud800x", "x"),
        ("[red]中文 é 👩‍👩‍👧[/red] :smile:", "[red]中文 é 👩‍👩‍👧[/red] :smile:"),
    ],
)
def test_sequences_and_controls_are_removed(text: str, shown: str) -> None:
    assert plain(text) == shown


@given(st.text(st.characters(exclude_categories=[])))
def test_nothing_that_steers_a_terminal_is_left(text: str) -> None:
    left = plain(text)
    assert not {char for char in left if unicodedata.category(char) in {"Cc", "Cs"}} - {"\n", "\t"}
    assert "\n" not in one_line(text)
    assert "\t" not in one_line(text)


@given(st.text(st.characters(exclude_categories=[])))
def test_escaped_json_means_the_same(text: str) -> None:
    escaped = escape_json(json.dumps([text], ensure_ascii=False))
    assert json.loads(escaped) == [text]
    assert plain(escaped) == escaped
