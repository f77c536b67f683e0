"""The table of metrics in the documentation is what is measured, and each upload counts once."""

import re
from pathlib import Path

from backend.metrics import UPLOADS, _registry, count_upload, render

TABLE = Path(__file__).parents[1] / "docs" / "operations.md"


def test_every_metric_is_documented_and_no_other() -> None:
    documented = re.findall(r"^\| `(citewire_\w+)` \| (\w+)", TABLE.read_text(encoding="utf-8"), re.MULTILINE)
    measured = {
        (f"{family.name}_total" if family.type == "counter" else family.name, family.type)
        for family in _registry.collect()
    }
    assert set(documented) == measured
    assert len(documented) == len(measured)


def test_the_ends_of_turns_are_there_before_the_first_turn() -> None:
    for end in ("completed", "stopped", "failed", "interrupted"):
        assert f'citewire_turns_total{{end="{end}"}}' in render().decode()


def test_an_upload_counts_by_what_became_of_it() -> None:
    def counted() -> float:
        return UPLOADS.labels("type_mismatch")._value.get()

    before = counted()
    count_upload("type_mismatch")
    assert counted() == before + 1
