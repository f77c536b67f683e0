"""Runs the scripts one after another and writes docs/performance.md from their figures."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCRIPTS: dict[str, list[str]] = {
    "turn_cost": [],
    "history": [],
    "first_token": [],
    "burst": [],
    "retrieval": [],
    "start": [],
}
FULL: dict[str, list[str]] = {"retrieval": ["--leaves", "1000000"]}


def measure(name: str, arguments: list[str]) -> dict[str, Any]:
    """The figure of one script. Raises ``CalledProcessError`` when it fails."""
    print(f"{name} …", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    print(done.stdout, flush=True)
    return json.loads(done.stdout)


def page(found: list[dict[str, Any]]) -> str:
    """``docs/performance.md``: each figure with its target, as measured."""
    machine = found[0]["machine"]
    parts = [
        "# Performance\n",
        "Written by `make bench`, which measures two things in each run, because machines differ: read the ratios, not "
        "the milliseconds. Every script is in `benchmarks/` and prints the JSON that stands here.\n",
        f"Machine: {machine['cores']} cores, {machine['platform']}, Python {machine['python']}.\n",
    ]
    for figure in found:
        values = {name: value for name, value in figure.items() if name not in {"figure", "target", "machine"}}
        parts += [
            f"## {figure['figure']}\n",
            f"Target: {figure['target']}. Run: `python -m benchmarks.{figure['figure']}`.\n",
            f"```json\n{json.dumps(values, indent=2)}\n```\n",
        ]
    return "\n".join(parts)


def main() -> None:
    """``--full`` runs the long forms and writes no page."""
    full = "--full" in sys.argv[1:]
    found = [measure(name, arguments) for name, arguments in (FULL if full else SCRIPTS).items()]
    if not full:
        (ROOT / "docs" / "performance.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
