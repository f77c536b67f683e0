"""Runs the scripts one after another and writes docs/performance.md from their figures."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.quality import PASSAGES, QUESTIONS

ROOT = Path(__file__).parents[1]
SCRIPTS: dict[str, list[str]] = {
    "turn_cost": [],
    "history": [],
    "thread_state": [],
    "first_token": [],
    "first_answer": [],
    "burst": [],
    "streams": [],
    "log_cost": [],
    "repair": [],
    "retrieval": [],
    "sub_questions": [],
    "loop": [],
    "start": [],
    "routes": [],
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


def with_data(data: Path | None) -> dict[str, list[str]]:
    """What is run when ``data`` has passages and questions; else what needs none, and a line that says so."""
    if data is not None and all((data / name).is_file() for name in (PASSAGES, QUESTIONS)):
        given = ["--data", str(data.resolve())]
        return {**SCRIPTS, "first_answer": given, "quality": given}
    where = "no directory given" if data is None else f"no {PASSAGES} and {QUESTIONS} in {data}"
    print(f"quality: skipped, {where} (make bench EVAL_DATA=DIRECTORY)", file=sys.stderr, flush=True)
    return SCRIPTS


def main() -> None:
    """``--full`` runs the long forms and writes no page; ``--data`` has passages and questions to measure quality."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    found = [
        measure(name, arguments) for name, arguments in (FULL if options.full else with_data(options.data)).items()
    ]
    if not options.full:
        (ROOT / "docs" / "performance.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
