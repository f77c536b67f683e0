"""Runs the scripts one after another; writes build/bench.json and, from it, docs/performance.md."""

import argparse
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.quality import PASSAGES, QUESTIONS

ROOT = Path(__file__).parents[1]
SCRIPTS: dict[str, list[str]] = {
    "turn_cost": [],
    "history": [],
    "thread_state": [],
    "run_python": [],
    "first_token": [],
    "first_answer": [],
    "burst": [],
    "streams": [],
    "log_cost": [],
    "repair": [],
    "retrieval": [],
    "freshness": [],
    "ingest": [],
    "delete": [],
    "sub_questions": [],
    "loop": [],
    "start": [],
    "routes": [],
}
HEADLINES: dict[str, list[str]] = {
    "turn_cost": ["ratio", "tokens_per_cpu_second/citewire", "tokens_per_cpu_second/minimal"],
    "history": ["ratios/cpu_ms", "ratios/transactions", "ratios/log_bytes"],
    "run_python": ["expression/p50_ms", "csv_sum/p50_ms", "first_ms"],
    "thread_state": ["state_growth_after_warm_up", "images_a_turn"],
    "first_token": ["over_provider_ms"],
    "burst": ["ratio_p99", "failed", "first_content_seconds/citewire", "first_content_seconds/minimal"],
    "streams": ["errors", "p99_gap_beyond_provider_ms/citewire", "resident_kilobytes_a_stream/citewire"],
    "log_cost": ["share"],
    "repair": ["another_worker_seconds", "started_anew_seconds"],
    "retrieval": ["query_ms/hybrid", "query_ms/dense", "query_ms/bm25", "memory_mb", "disk_mb"],
    "ingest": ["pdf/pages_a_second", "markdown/files_a_second", "max_gap_beyond_provider_ms/with_ingest"],
    "delete": ["accepted_seconds", "gone_seconds", "documents_a_second/together", "documents_a_second/one_by_one"],
    "freshness": ["answer_ms/new", "answer_ms/known", "questions_until_found"],
    "sub_questions": ["times", "without_provider/times"],
    "loop": ["callback_cpu_ms/extractive/max", "callback_cpu_ms/provider/max"],
    "quality": ["answers/en/contains", "answers/zh/contains", "retrieval/en/arms/hybrid/ndcg@10"],
    "start": ["later_start_seconds", "resident_mb"],
}
"""What the table shows of a figure: paths into its JSON."""
LIBRARIES = ("fastapi", "uvicorn", "sqlalchemy", "asyncpg", "langchain", "langgraph", "lancedb")
RESULTS = ROOT / "build" / "bench.json"
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


def headline(figure: dict[str, Any]) -> str:
    """The figures that the target is about, for the table."""
    found = []
    for path in HEADLINES.get(figure["figure"], ()):
        value: Any = figure
        for part in path.split("/"):
            value = value[part]
        label = path.replace("_", " ").replace("/", ", ")
        found.append(f"{label}: {spread(value) if isinstance(value, dict) else value}")
    return "; ".join(found)


def spread(value: dict[str, Any]) -> str:
    """A median with the least and the greatest."""
    return f"{value['median']} ({value['min']} to {value['max']})"


def page(found: list[dict[str, Any]]) -> str:
    """``docs/performance.md``: a table of all figures, then each with its target, as measured."""
    machine = found[0]["machine"]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES)
    parts = [
        "# Performance\n",
        "Written by `make bench`, which measures two things in each run, because machines differ: read the ratios, not "
        "the milliseconds. Every script is in `benchmarks/` and prints the JSON that stands here; where a spread is "
        "given it is the median with the least and the greatest. `python -m benchmarks.compare OLD.json NEW.json` sets "
        "two runs side by side (`build/bench.json` is the last one).\n",
        f"Machine: {machine['cores']} cores, {machine['platform']}, Python {machine['python']}; {versions}.\n",
        "| figure | target | measured |\n|---|---|---|",
        *(f"| [{one['figure']}](#{one['figure']}) | {one['target']} | {headline(one)} |" for one in found),
        "",
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
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if not options.full:
        (ROOT / "docs" / "performance.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
