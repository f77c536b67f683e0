"""Measures of ranked lists, by the library ir-measures."""

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

NDCG, RECALL, MRR = "ndcg@10", "recall@5", "mrr"


class MeasuresMissing(ValueError):
    """The library is not installed; the text is one line."""


def check_measures() -> None:
    """Raises :class:`MeasuresMissing` before any work is done."""
    _library()


def measure(relevant: Mapping[str, Mapping[str, int]], ranked: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """The means over all questions of ``relevant`` (question -> passage -> grade) of nDCG@10 with the grades as gains,
    of recall@5 (the share of the passages with a grade above 0 that are among the first five) and of the reciprocal
    rank of the first such passage.

    ``ranked`` has the passages found for each question, best first; a question without any counts as 0. Raises
    :class:`MeasuresMissing`.
    """
    library = _library()
    measures = {NDCG: library.nDCG @ 10, RECALL: library.R @ 5, MRR: library.RR}
    run = {
        question: {passage: 1 / place for place, passage in enumerate(passages, start=1)}
        for question, passages in ranked.items()
    }
    grades = {question: dict(judged) for question, judged in relevant.items()}
    found = library.calc_aggregate(list(measures.values()), grades, run)
    return {name: float(found[value]) for name, value in measures.items()}


def _library() -> Any:
    try:
        return importlib.import_module("ir_measures")
    except ModuleNotFoundError as error:
        raise MeasuresMissing("ir-measures is missing: pip install ir-measures (it needs a C compiler here)") from error
