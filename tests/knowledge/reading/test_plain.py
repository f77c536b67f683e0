"""Tables, trees of values and web pages that are text files."""

from pathlib import Path

import pytest

from backend.knowledge.parse_worker import read
from backend.knowledge.reading.base import Limits, Refused
from backend.knowledge.reading.plain import csv_text, json_text
from tests.knowledge.samples import HTML

LIMITS = Limits(10, 1000, 1_000_000)


def test_a_csv_becomes_a_table() -> None:
    text = 'Part,Price,Note\nValve,12,"big, red"\n水泵,7,"two\nlines | bar"\n\n,,\nSeal\n'
    assert csv_text(text, LIMITS) == (
        "| Part | Price | Note |\n| --- | --- | --- |\n| Valve | 12 | big, red |\n"
        "| 水泵 | 7 | two lines \\| bar |\n| Seal |  |  |"
    )


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_found(delimiter: str) -> None:
    rows = [["Part", "Price, net"], ["Valve", "12,50"], ["Seal; small", "3,10"]]
    text = "\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in rows)
    assert csv_text(text, LIMITS).splitlines()[2:] == ["| Valve | 12,50 |", "| Seal; small | 3,10 |"]


def test_cells_of_a_csv_are_counted() -> None:
    with pytest.raises(Refused) as caught:
        csv_text("a,b\n" * 501, LIMITS)
    assert caught.value.code == "too_large"


def test_json_keys_become_headings_and_records_a_table() -> None:
    text = (
        '{"parts": [{"name": "Valve", "price": 12}, {"name": "Seal"}], "site": "North", "pump": {"flow": {"max": 40}}}'
    )
    assert json_text(text, LIMITS) == (
        "site: North\n\n# parts\n\n| name | price |\n| --- | --- |\n| Valve | 12 |\n| Seal |  |\n"
        "\n\n# pump\n\nflow.max: 40"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, null, true]", "1\n\ntrue"),
        ('"word"', "word"),
        ('[{"a": {"b": [1, 2]}}, {"a": 3}]', "[1].a.b: 1, 2\n\n[2].a: 3\n"),
        ('{"a": 1}\n{"a": 2}\n', "| a |\n| --- |\n| 1 |\n| 2 |\n"),
        ('{"cut": 1,', '{"cut": 1,'),
        ('{"\\u6c34": "\\u6cf5"}', "水: 泵"),
        ("{}", ""),
    ],
)
def test_json_of_any_shape_is_read(text: str, expected: str) -> None:
    assert json_text(text, LIMITS) == expected


def test_json_that_is_deeper_than_any_data_is_bounded() -> None:
    with pytest.raises(Refused):
        json_text('{"a":' * 200 + "1" + "}" * 200, LIMITS)
    assert json_text("[" * 100_000, LIMITS) == "[" * 100_000


def test_a_web_page_keeps_headings_and_cells(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_text(HTML)
    [part] = read(path, "html", LIMITS).parts
    assert part.text == (
        "# Pumps\n\nThe intake pump is blue.\n\n## Spares\n\n| Part | Price |\n| --- | --- |\n| Valve | 12 |\n"
        "| Seal | 14 |\n\n# Doors\n\nThe north door opens at seven."
    )


def test_a_title_is_the_heading_of_a_page_without_one(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_text(HTML.replace("h1>", "h3>"))
    [part] = read(path, "html", LIMITS).parts
    assert part.text.startswith("# Plant & pumps\n\n### Pumps\n")


def test_identifiers_are_not_escaped(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_text("<table><tr><td>ERR_0x80_a*b</td><td>a|b</td></tr></table><pre>x\\_y</pre>")
    [part] = read(path, "html", LIMITS).parts
    assert part.text.splitlines()[0] == "| ERR_0x80_a*b | a\\|b |"
    assert "x\\_y" in part.text
