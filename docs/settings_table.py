"""Writes the tables of options between the markers of README.md and docs/configuration.md.

Names, defaults and bounds come from ``Settings``, meanings and sections from the comments of ``.env.example``.
``python -m docs.settings_table`` (``make settings``) writes; a test compares.
"""

import re
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from backend.settings import Settings

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / ".env.example"
PAGES = (ROOT / "README.md", ROOT / "docs" / "configuration.md")
MARKED = re.compile(r"(<!-- settings: ([A-Z0-9_ ]+|every one) -->\n)(.*?)(<!-- end of settings -->)", re.DOTALL)
"""A table and which options are in it."""

Sections = dict[str, dict[str, str]]
"""Title of a section to its options' names and meanings, in the order of the file."""


def sections(text: str) -> Sections:
    """What ``.env.example`` says. Raises ``ValueError`` for an option without a comment right above it."""
    found: Sections = {}
    title, comment = "", list[str]()
    for line in text.splitlines():
        if heading := re.fullmatch(r"# --- (.+) ---", line):
            title, comment = heading[1], []
        elif line.startswith("# "):
            comment.append(line.removeprefix("# "))
        elif option := re.match(r"([A-Z0-9_]+)=", line):
            if not comment:
                raise ValueError(f".env.example: {option[1]} has no comment")
            found.setdefault(title, {})[option[1]] = " ".join(comment)
            comment = []
        else:
            comment = []
    return found


def default(name: str) -> str:
    """The default as it would be written into ``.env``; ``unset`` for none."""
    value: Any = Settings.model_fields[name.lower()].default
    if value is None or value == () or isinstance(value, SecretStr):
        return "unset"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def values(name: str) -> str:
    """What a value may be, in few words; nothing where any text will do."""
    schema: dict[str, Any] = Settings.model_json_schema()["properties"][name.lower()]
    schema = next((one for one in schema.get("anyOf", []) if one.get("type") != "null"), schema)
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "boolean":
        return "`true`, `false`"
    return _range(schema) if schema.get("type") in ("integer", "number") else ""


def _range(schema: dict[str, Any]) -> str:
    low = str(schema["minimum"]) if "minimum" in schema else ""
    above = f"above {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else ""
    if schema["type"] == "integer" and above:
        low, above = str(schema["exclusiveMinimum"] + 1), ""
    high = str(schema.get("maximum", ""))
    if low and high:
        return f"{low} to {high}"
    return ", ".join(part for part in (above, low and f"from {low}", high and f"up to {high}") if part)


def table(meanings: dict[str, str], *, bounds: bool) -> str:
    """A Markdown table, one line an option; with ``bounds`` it says what a value may be."""
    lines = (
        ["| option | default | values | |", "|---|---|---|---|"]
        if bounds
        else ["| option | default | |", "|---|---|---|"]
    )
    for name, meaning in meanings.items():
        cells = [f"`{name}`", default(name), *([values(name)] if bounds else []), meaning.replace("|", "\\|")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def written(page: str, options: Sections) -> str:
    """``page`` with its tables as they should be."""
    meanings = {name: text for section in options.values() for name, text in section.items()}

    def fill(mark: re.Match[str]) -> str:
        if mark[2] == "every one":
            parts = [f"\n## {_sentence(title)}\n\n{table(rows, bounds=True)}" for title, rows in options.items()]
            return "".join([mark[1], *parts, "\n", mark[4]])
        chosen = {name: meanings[name] for name in mark[2].split()}
        return mark[1] + table(chosen, bounds=False) + mark[4]

    return MARKED.sub(fill, page)


def _sentence(title: str) -> str:
    return title[0].upper() + title[1:]


def main() -> None:
    """Write both pages anew."""
    options = sections(EXAMPLE.read_text(encoding="utf-8"))
    for path in PAGES:
        path.write_text(written(path.read_text(encoding="utf-8"), options), encoding="utf-8")


if __name__ == "__main__":
    main()
