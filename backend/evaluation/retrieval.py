"""How well the passages are found: by each arm of the index alone, by both fused, and fused and merged."""

import statistics
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from backend.evaluation.dataset import Question
from backend.evaluation.library import Library, Progress
from backend.evaluation.measures import MRR, NDCG, RECALL, measure
from backend.knowledge.index.base import Mode
from backend.metrics import stage_seconds
from backend.rag.config import RagConfig
from backend.rag.merge import auto_merge
from backend.rag.retrieve import Candidate, candidates
from backend.tracing import stage

Arm = Literal["dense", "sparse", "hybrid", "hybrid_merge"]
PASSES: tuple[Mode, ...] = ("dense", "sparse", "hybrid")
"""Each question is asked of each arm alone and of both; what both find is merged in the last pass."""
STAGES = ("embed", "search", "load", "merge")
WARM_UP = 3
"""Questions that are asked before a pass is timed."""


class ArmReport(BaseModel):
    """Means over all questions. ``ms`` is the median time of one, ``stages_ms`` the mean of each part of it."""

    model_config = ConfigDict(serialize_by_alias=True)

    ndcg: float = Field(serialization_alias=NDCG)
    recall: float = Field(serialization_alias=RECALL)
    mrr: float = Field(serialization_alias=MRR)
    ms: float
    stages_ms: dict[str, float]


class RetrievalReport(BaseModel):
    """The figures of every arm; with counts of questions and passages."""

    arms: dict[Arm, ArmReport]
    questions: int
    passages: int


@dataclass(slots=True)
class _Run:
    """What one arm found: the passages for each question, best first, and the seconds each took."""

    ranked: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    seconds: list[float] = field(default_factory=list[float])
    stages_ms: dict[str, float] = field(default_factory=dict[str, float])


async def measure_retrieval(
    library: Library, questions: Sequence[Question], passages: int, config: RagConfig, advance: Progress
) -> RetrievalReport:
    """Asks every question ``len(PASSES)`` times, as deep as a chat looks; a passage stands where its best chunk does.

    Planning, grading and reranking have no part in it. ``advance`` is called after each question of each pass.
    """
    runs: dict[Arm, _Run] = {}
    for mode in PASSES:
        runs |= await _pass(library, questions, mode, config, advance)
    grades = {question.id: question.grades for question in questions}
    return RetrievalReport(
        arms={arm: _report(grades, run) for arm, run in runs.items()}, questions=len(questions), passages=passages
    )


def _report(grades: dict[str, dict[str, int]], run: _Run) -> ArmReport:
    found = measure(grades, run.ranked)
    return ArmReport(
        ndcg=round(found[NDCG], 4),
        recall=round(found[RECALL], 4),
        mrr=round(found[MRR], 4),
        ms=round(statistics.median(run.seconds) * 1000, 2),
        stages_ms=run.stages_ms,
    )


async def _pass(
    library: Library, questions: Sequence[Question], mode: Mode, config: RagConfig, advance: Progress
) -> dict[Arm, _Run]:
    """Asks every question of ``mode``; the arms that this tells about."""
    recalled, merged = _Run(), _Run()
    for question in questions[:WARM_UP]:
        await _recall(library, question, mode, config)
    with _stages(recalled, len(questions), STAGES[:3]), _stages(merged, len(questions), STAGES):
        for question in questions:
            started = time.perf_counter()
            found = await _recall(library, question, mode, config)
            recalled.seconds.append(time.perf_counter() - started)
            recalled.ranked[question.id] = library.ranked([hit.document_id for hit in found])
            if mode == "hybrid":
                started = time.perf_counter()
                kept = await _merge(library, found, config)
                merged.seconds.append(recalled.seconds[-1] + time.perf_counter() - started)
                merged.ranked[question.id] = library.ranked([hit.document_id for hit in kept])
            advance()
    return {mode: recalled, "hybrid_merge": merged} if mode == "hybrid" else {mode: recalled}


async def _recall(library: Library, question: Question, mode: Mode, config: RagConfig) -> list[Candidate]:
    recall = await library.knowledge.recall(
        library.principal.id,
        question.question,
        config.candidate_k().value,
        config.leaf_retrieve_level,
        mode=mode,
    )
    return candidates(recall.hits)


async def _merge(library: Library, found: list[Candidate], config: RagConfig) -> list[Candidate]:
    """As the retrieval of a chat does, also where it is switched off there."""
    with stage("merge"):
        merged = await auto_merge(
            found,
            config.leaf_retrieve_level,
            config.auto_merge_threshold,
            lambda ids: library.knowledge.chunks(library.principal.id, ids),
        )
    return merged.candidates


@contextmanager
def _stages(run: _Run, questions: int, names: Sequence[str]) -> Generator[None]:
    """Gives ``run`` the mean milliseconds that each stage took within the block."""
    before = {name: stage_seconds(name) for name in names}
    yield
    spent = {name: (stage_seconds(name) - before[name]) * 1000 / questions for name in names}
    run.stages_ms = {name: round(value, 2) for name, value in spent.items() if value}
