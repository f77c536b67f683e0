"""The table of metrics in the documentation is what is measured, and each upload counts once."""

import re
from pathlib import Path

import pytest

from backend.errors import TypeMismatch
from backend.metrics import UPLOADS, _registry, counted_upload, render

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


@pytest.mark.parametrize(
    ("error", "result"), [(None, "ok"), (TypeMismatch(), "type_mismatch"), (RuntimeError(), "aborted")]
)
def test_an_upload_counts_once_by_what_became_of_it(error: Exception | None, result: str) -> None:
    def counted() -> float:
        return UPLOADS.labels(result)._value.get()

    before = counted()

    def upload() -> None:
        with counted_upload():
            if error is not None:
                raise error

    if error is None:
        upload()
    else:
        with pytest.raises(type(error)):
            upload()
    assert counted() == before + 1
