"""What was tried, as a page and as JSON beside it."""

import json
import platform
from collections import defaultdict
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class Tried:
    """One repeat of one experiment."""

    test: str
    seed: int
    outcome: str
    seconds: float

    @property
    def experiment(self) -> str:
        """Its name, without the repeat."""
        module, _, rest = self.test.rpartition("/")[2].partition("::")
        name, _, cases = rest.partition("[")
        kept = [part for part in cases.rstrip("]").split("-") if not part.startswith("seed")]
        kind = f" ({', '.join(kept)})" if kept else ""
        return (
            f"{module.removesuffix('.py').removeprefix('test_')}: {name.removeprefix('test_').replace('_', ' ')}{kind}"
        )


def write(path: Path, tried: list[Tried]) -> None:
    """The page at ``path`` and ``.json`` beside it; the newest replaces what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps([asdict(one) for one in tried], indent=1) + "\n", encoding="utf-8")
    path.write_text(page(tried), encoding="utf-8")


def page(tried: list[Tried]) -> str:
    """A table of the experiments, one line each."""
    by_name: defaultdict[str, list[Tried]] = defaultdict(list)
    for one in tried:
        by_name[one.experiment].append(one)
    failed = [one for one in tried if one.outcome != "passed"]
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    lines = [
        f"{len(by_name)} experiments, {len(tried)} repeats, {len(failed)} failed; {when}, Python "
        f"{platform.python_version()}, {platform.machine()}.",
        "",
        "| experiment | repeats | failed | seeds | seconds, longest |",
        "|---|---|---|---|---|",
    ]
    for name, ones in sorted(by_name.items()):
        seeds = sorted({one.seed for one in ones})
        wrong = [str(one.seed) for one in ones if one.outcome != "passed"]
        lines.append(
            f"| {name} | {len(ones)} | {', '.join(wrong) or '0'} | {seeds[0]} to {seeds[-1]} "
            f"| {max(one.seconds for one in ones):.1f} |"
        )
    return "\n".join(lines) + "\n"
