"""Files that are text: as it stands, or a table, a tree of values or a web page written in it."""

import csv
import io
import json
import re
from collections.abc import Iterator
from typing import TypeAlias, TypeGuard

from backend.knowledge.reading.base import Limits, Refused
from backend.knowledge.reading.markdown import markdown_table

_DELIMITERS = ",;\t|"
_SNIFFED_CHARS = 64 * 1024
_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_MAX_DEPTH = 100

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


def declared_charset(data: bytes) -> str | None:
    """The encoding that a web page names for itself."""
    match = _CHARSET.search(data[:4096])
    return match[1].decode("ascii", "replace") if match else None


# --- CSV ---------------------------------------------------------------------------------------------------------


def csv_text(text: str, limits: Limits) -> str:
    """The table as Markdown. Comma, semicolon, tab and bar are told apart by the beginning of the file."""
    csv.field_size_limit(max(1, len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
    rows: list[list[str]] = []
    cells = 0
    try:
        for row in reader:
            cells += len(row)
            if cells > limits.max_cells:
                raise Refused("too_large")
            rows.append(row)
    except csv.Error as error:
        raise Refused("parse_failed") from error
    return markdown_table(rows)


def _delimiter(text: str) -> str:
    """The one that cuts the first lines into most cells, each line into as many, and leaves no quotes behind."""
    lines = [line for line in text[:_SNIFFED_CHARS].splitlines() if line.strip()][:50]

    def cut(delimiter: str) -> tuple[bool, int]:
        rows = list(csv.reader(lines, delimiter=delimiter))
        widths = {len(row) for row in rows}
        quotes = any('"' in cell for row in rows for cell in row)
        return len(widths) == 1 and widths != {1} and not quotes, max(widths, default=0)

    return max(_DELIMITERS, key=cut)


# --- JSON --------------------------------------------------------------------------------------------------------


def json_text(text: str, limits: Limits) -> str:
    """A list of records as a table, other values as lines ``path: value``; a heading for each key at the top.

    JSON Lines are a list. What is not JSON stays as it stands.
    """
    try:
        value = _load(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(value, dict):
        return "\n".join(_lines("", value, limits))
    # Plain values come first: below a heading they would seem to belong to it.
    plain = [line for key, item in value.items() if not _has_items(item) for line in _lines(key, item, limits)]
    nested = [
        f"# {' '.join(key.split())}\n\n" + "\n".join(_lines("", item, limits))
        for key, item in value.items()
        if _has_items(item)
    ]
    return "\n\n".join(["\n".join(plain), *nested]).strip()


def _has_items(value: Json) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _load(text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _lines(path: str, value: Json, limits: Limits, depth: int = 0) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise Refused("too_large")
    if _are_records(value):
        yield from ([f"{path}:", ""] if path else [])
        yield from [_table(value, limits), ""]
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _lines(f"{path}.{key}" if path else key, item, limits, depth + 1)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for number, item in enumerate(value, start=1):
            yield from _lines(f"{path}[{number}]", item, limits, depth + 1)
            yield ""
    else:
        text = (", " if path else "\n").join(map(_scalar, value)) if isinstance(value, list) else _scalar(value)
        yield f"{path}: {text}" if path else text


def _are_records(value: Json) -> TypeGuard[list[dict[str, Json]]]:
    """Whether ``value`` is a list of flat records that share most of their keys."""
    if not isinstance(value, list) or not value:
        return False
    records = [item for item in value if isinstance(item, dict) and item]
    if len(records) < len(value) or any(isinstance(cell, dict | list) for item in records for cell in item.values()):
        return False
    return len({key for item in records for key in item}) <= 2 * max(len(item) for item in records)


def _table(records: list[dict[str, Json]], limits: Limits) -> str:
    columns = list(dict.fromkeys(key for record in records for key in record))
    if len(columns) * len(records) > limits.max_cells:
        raise Refused("too_large")
    return markdown_table([columns, *([_scalar(record.get(column)) for column in columns] for record in records)])


def _scalar(value: Json) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)
