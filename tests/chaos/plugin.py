"""Options of the experiments, and their report; ``make chaos`` loads it, ``make test`` runs their short form without.

``python -m pytest -p tests.chaos.plugin tests/chaos --chaos-seed 7 --chaos-report build/chaos-report.md``
"""

import json
import secrets
from collections import defaultdict
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

SEED = pytest.StashKey[int]()


@dataclass(frozen=True)
class Result:
    """How one repeat of one experiment went; ``measured`` is what it noted."""

    experiment: str
    variant: str
    title: str
    passed: bool
    seconds: float
    measured: dict[str, Any]
    failure: str = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos")
    group.addoption("--chaos-repeats", type=int, default=3, help="how often each experiment runs")
    group.addoption("--chaos-races", type=int, default=20, help="how often each race runs, at least")
    group.addoption("--chaos-seed", type=int, default=None, help="the seed of an earlier run, to have it again")
    group.addoption("--chaos-part", default="1/1", help="k/n: the k-th of n parts of the experiments")
    group.addoption("--chaos-report", type=Path, default=None, help="where the report goes (.md, and .json beside it)")


def pytest_configure(config: pytest.Config) -> None:
    given = getattr(config, "workerinput", {}).get("chaos_seed", config.getoption("--chaos-seed"))
    config.stash[SEED] = secrets.randbelow(1_000_000) if given is None else given
    path: Path | None = config.getoption("--chaos-report")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(config, path))


def pytest_configure_node(node: Any) -> None:
    node.workerinput["chaos_seed"] = node.config.stash[SEED]


def pytest_report_header(config: pytest.Config) -> str:
    return f"chaos: seed {config.stash[SEED]}, {config.getoption('--chaos-repeats')} repeats"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the experiments of one part; those of one experiment stay together."""
    number, of = (int(word) for word in config.getoption("--chaos-part").split("/"))
    names = list(dict.fromkeys(_experiment(item.nodeid) for item in items))
    mine = {name for place, name in enumerate(names) if place % of == number - 1}
    config.hook.pytest_deselected(items=[item for item in items if _experiment(item.nodeid) not in mine])
    items[:] = [item for item in items if _experiment(item.nodeid) in mine]


class Report:
    """Gathers the results, also those of other processes, and writes them at the end."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path
        self._results: list[Result] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not (report.when == "call" or report.failed):
            return
        noted = dict(report.user_properties)
        variant = report.nodeid.partition("[")[2].rstrip("]")
        failure = "" if report.passed else report.longreprtext[-4000:]
        title = str(noted.pop("title", report.nodeid))
        name = _experiment(report.nodeid)
        self._results.append(Result(name, variant, title, report.passed, report.duration, noted, failure))

    def pytest_sessionfinish(self) -> None:
        option = self._config.getoption
        about = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "seed": self._config.stash[SEED],
            "part": option("--chaos-part"),
            "repeats": option("--chaos-repeats"),
            "races": max(option("--chaos-races"), option("--chaos-repeats")),
        }
        whole = {**about, "results": [asdict(result) for result in self._results]}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        self._path.write_text(page(about, self._results), encoding="utf-8")


def page(about: dict[str, Any], results: list[Result]) -> str:
    """The report, one table: an experiment a row."""
    failed = [result for result in results if not result.passed]
    lines = [
        f"{len(results)} trials, {len(failed)} failed. Seed {about['seed']}, part {about['part']}, {about['repeats']} "
        f"repeats, races {about['races']}; ended {about['at']}.",
        "",
        "| experiment | passed | seconds each | measured, worst |",
        "|---|---|---|---|",
    ]
    grouped: defaultdict[str, list[Result]] = defaultdict(list)
    for result in results:
        grouped[result.title].append(result)
    for title, group in grouped.items():
        passed = sum(result.passed for result in group)
        seconds = sum(result.seconds for result in group) / len(group)
        lines.append(f"| {title} | {passed} of {len(group)} | {seconds:.1f} | {_worst(group)} |")
    for result in failed:
        lines += ["", f"Failed: {result.experiment}[{result.variant}]", "", "```", result.failure, "```"]
    return "\n".join(lines) + "\n"


def _worst(group: list[Result]) -> str:
    names = dict.fromkeys(name for result in group for name in result.measured)
    worst = {name: max(result.measured[name] for result in group if name in result.measured) for name in names}
    return ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in worst.items())


def _experiment(nodeid: str) -> str:
    return nodeid.partition("[")[0].partition("::")[2]
