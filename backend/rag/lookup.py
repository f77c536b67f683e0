"""One look-up: recall, merge, rerank and grade of one question, with the trace of each stage."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from backend.catalogue import Language, say
from backend.infra.rerank import Reranker
from backend.rag.config import RagConfig
from backend.rag.decisions import DecisionInput
from backend.rag.grade import Evidence, Graded, grade, grade_trace
from backend.rag.merge import Merged, auto_merge
from backend.rag.rerank import rerank
from backend.rag.retrieve import Candidate, Library, candidates, fuse, in_files
from backend.rag.structured import NO_RULE, DecisionModel
from backend.schemas.chat import Emit
from backend.tracing import stage


@dataclass(frozen=True, slots=True)
class RagRequest:
    """Who asks, in which language steps are reported and where to, and which collections count; ``None``: all."""

    user_id: UUID
    language: Language
    emit: Emit
    collections: Collection[UUID] | None = None

    def grouped(self, group: str, label: str) -> "RagRequest":
        """The same, its steps under ``group``."""
        emit = partial(self.emit, group=group, group_label=label)
        return RagRequest(self.user_id, self.language, emit, self.collections)


@dataclass(frozen=True, slots=True)
class Lookup:
    """What is looked up: passages for ``question``, searched with ``query``.

    ``earlier`` is what a look-up before this one recalled: its passages compete with the new ones. ``files`` narrows
    the passages to those of the files that it names, if there are any.
    """

    question: str
    query: str
    earlier: Sequence[Candidate] = ()
    files: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """``recalled`` by the search, best first; ``kept`` of them (and of earlier ones) after merge and rerank."""

    question: str
    recalled: list[Candidate]
    kept: list[Candidate]
    graded: Graded
    trace: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def evidence(self) -> Evidence:
        """What there is to go by."""
        if not self.kept:
            return "below_floor" if self.trace["recall_count"] else "nothing"
        return "ungraded" if self.graded.decision is None else "graded"


class Lookups:
    """Makes look-ups. Storage errors pass through; a reranker or a grader that fails costs its own part only."""

    def __init__(self, library: Library, config: RagConfig, reranker: Reranker, grader: DecisionModel) -> None:
        self._library = library
        self._config = config
        self._reranker = reranker
        self._grader = grader

    async def run(self, lookup: Lookup, request: RagRequest) -> Found:
        """The passages for ``lookup`` and what they are worth."""
        with stage("retrieve"):
            recalled, trace = await self._recall(lookup, request)
        pool = in_files(fuse(lookup.earlier, recalled), lookup.files)
        with stage("merge"):
            merged, merging = await self._merge(pool, request)
        with stage("rerank"):
            kept, ranking = await self._rerank(lookup.question, merged, request)
        graded = Graded(None, NO_RULE)
        if kept:
            with stage("grade"):
                graded = await self._grade(lookup.question, kept, request)
        judged = grade_trace(graded) if kept else {}
        return Found(lookup.question, recalled, kept, graded, {**trace, **merging, **ranking, **judged})

    async def _recall(self, lookup: Lookup, request: RagRequest) -> tuple[list[Candidate], dict[str, Any]]:
        request.emit("🔍", say("step_searching", request.language), lookup.query)
        limit, level = self._config.candidate_k().value, self._config.leaf_retrieve_level
        asked = (request.user_id, lookup.query, limit, level)
        recall = await self._library.recall(*asked, collections=request.collections)
        found = candidates(recall.hits)
        request.emit("📚", say("step_recalled", request.language, count=len(found)), recall.mode)
        return found, {"retrieval_mode": recall.mode, "recall_count": len(found)}

    async def _merge(self, found: list[Candidate], request: RagRequest) -> tuple[list[Candidate], dict[str, Any]]:
        config = self._config
        merged = Merged(found)
        if config.auto_merge_enabled:
            fetch = partial(self._library.chunks, request.user_id)
            merged = await auto_merge(found, config.leaf_retrieve_level, config.auto_merge_threshold, fetch)
        if merged.steps:
            request.emit("🧩", say("step_merged", request.language, count=merged.replaced))
        return merged.candidates, {
            "auto_merge_enabled": config.auto_merge_enabled,
            "auto_merge_applied": merged.steps > 0,
            "auto_merge_threshold": config.auto_merge_threshold,
            "auto_merge_replaced_chunks": merged.replaced,
            "auto_merge_steps": merged.steps,
            "post_merge_candidate_count": len(merged.candidates),
        }

    async def _rerank(
        self, question: str, found: list[Candidate], request: RagRequest
    ) -> tuple[list[Candidate], dict[str, Any]]:
        reranked = await rerank(self._reranker, self._config, question, found)
        if reranked.applied:
            label = say("step_reranked", request.language, count=reranked.trace["candidate_count"])
            request.emit("⚖️", label, self._reranker.model or "")
        elif "rerank_error" in reranked.trace:
            request.emit("⚠️", say("step_rerank_failed", request.language))
        return reranked.candidates, reranked.trace

    async def _grade(self, question: str, kept: list[Candidate], request: RagRequest) -> Graded:
        graded = await grade(self._grader, DecisionInput(question, request.language, kept))
        if graded.decision is not None:
            request.emit("🧪", say(f"step_graded_{graded.decision.answerability}", request.language))
        elif graded.failure != NO_RULE:
            request.emit("⚠️", say("step_grade_failed", request.language))
        return graded
