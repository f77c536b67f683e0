"""G01: the title by rule is one short clean line, whatever the first message is."""

import pytest
import regex

from backend.chat.titles import MAX_GRAPHEMES, rule_title

FAMILY = "👨‍👩‍👧‍👦"


@pytest.mark.parametrize(
    ("message", "title"),
    [
        ("How long is the warranty?", "How long is the warranty?"),
        ("  two\nlines\r\n\tand\u2028more  ", "two lines and more"),
        ("a\x00b\x07c", "a b c"),
        ("<b>bold</b> <script>x</script>", "<b>bold</b> <script>x</script>"),
        ('{"json": [1, 2]}', '{"json": [1, 2]}'),
        ("   \n\t ", "…"),
        ("\u200b\u200e\ufeff", "…"),
        ("🙂🙃", "🙂🙃"),
        (FAMILY * 3, FAMILY * 3),
        ("保修期多长？", "保修期多长？"),
        ("x" * MAX_GRAPHEMES, "x" * MAX_GRAPHEMES),
        ("x" * (MAX_GRAPHEMES + 1), "x" * (MAX_GRAPHEMES - 1) + "…"),
        ("e\u0301" * 100, "e\u0301" * (MAX_GRAPHEMES - 1) + "…"),
        (FAMILY * 100, FAMILY * (MAX_GRAPHEMES - 1) + "…"),
    ],
)
def test_g01_title(message: str, title: str):
    assert rule_title(message) == title


@pytest.mark.parametrize("unit", ["word ", "x", " ", "\n", "🙂", FAMILY, "e\u0301", "<img src=x>", "\x00", "文"])
def test_g01_a_message_of_200_kb_gives_one_line_of_80_graphemes_at_most(unit: str):
    title = rule_title(unit * (200_000 // len(unit)))
    assert 1 <= len(regex.findall(r"\X", title)) <= 80
    assert len(title.splitlines()) == 1
    assert title == title.strip()
    assert "\x00" not in title
