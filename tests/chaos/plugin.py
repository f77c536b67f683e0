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
_RESULTS = pytest.StashKey["list[Result]"]()


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
    config.stash[_RESULTS] = []


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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if _config is None or not (report.when == "call" or report.failed):
        return
    noted = dict(report.user_properties)
    name, _, variant = report.nodeid.partition("[")
    failure = "" if report.passed else report.longreprtext[-4000:]
    title = str(noted.pop("title", name))
    result = Result(_experiment(name), variant.rstrip("]"), title, report.passed, report.duration, noted, failure)
    _config.stash[_RESULTS].append(result)


_config: pytest.Config | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    global _config
    _config = session.config


def pytest_sessionfinish(session: pytest.Session) -> None:
    path: Path | None = session.config.getoption("--chaos-report")
    if path is None or hasattr(session.config, "workerinput"):
        return
    results = session.config.stash[_RESULTS]
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": session.config.stash[SEED],
        "part": session.config.getoption("--chaos-part"),
        "repeats": session.config.getoption("--chaos-repeats"),
        "races": session.config.getoption("--chaos-races"),
    }
    whole = {**about, "results": [asdict(result) for result in results]}
    path.with_suffix(".json").write_text(json.dumps(whole, indent=1, default=str) + "\n", encoding="utf-8")
    path.write_text(page(about, results), encoding="utf-8")


def page(about: dict[str, Any], results: list[Result]) -> str:
    """The report, one table: an experiment a row."""
    failed = [result for result in results if not result.passed]
    lines = [
        f"{len(results)} trials, {len(failed)} failed. Seed {about['seed']}, part {about['part']}, {about['repeats']} "
        f"repeats, races {max(about['races'], about['repeats'])}; ended {about['at']}.",
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
