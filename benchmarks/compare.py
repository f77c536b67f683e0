"""Two runs of ``make bench`` side by side: every number that both have, and how it changed.

python -m benchmarks.compare OLD.json NEW.json [--least 0.1]
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_GIVEN = {"machine", "turns", "rounds", "repeats", "streams", "tokens", "passages", "leaves", "callbacks"}
"""What was asked for, not measured."""


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in ``value``, by the way to them."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield path, float(value)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name not in _GIVEN:
                yield from numbers(inner, f"{path}/{name}".lstrip("/"))


def read(path: Path) -> dict[str, float]:
    """The numbers of all figures in a file that ``make bench`` has written. Raises ``OSError``, ``ValueError``."""
    figures = json.loads(path.read_text(encoding="utf-8"))
    return {name: value for figure in figures for name, value in numbers(figure, str(figure["figure"]))}


def main() -> None:
    """``--least``: what changed by a smaller share is left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--least", type=float, default=0.1)
    options = parser.parse_args()
    old, new = read(options.old), read(options.new)
    for name in sorted(old.keys() & new.keys()):
        before, after = old[name], new[name]
        if abs(after - before) > options.least * max(abs(before), abs(after)):
            times = f"{after / before:.2f} times" if before else "was 0"
            print(f"{name}: {before:g} -> {after:g} ({times})")


if __name__ == "__main__":
    main()
