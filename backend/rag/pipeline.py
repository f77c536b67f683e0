"""The retrieval graph: plan, retrieve, merge, rerank, answer. Compiled once, run for each question."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any, TypedDict
from uuid import UUID

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from backend.catalogue import Language, say
from backend.infra.rerank import NoReranker, Reranker
from backend.rag.config import RagConfig
from backend.rag.merge import Merged, auto_merge
from backend.rag.rerank import rerank
from backend.rag.resume import HitlResume
from backend.rag.retrieve import Candidate, Library, candidates
from backend.schemas.chat import Emit, HitlResumeState
from backend.tracing import stage


@dataclass(frozen=True, slots=True)
class RagRequest:
    """Who asks, in which language steps are reported, and where to."""

    user_id: UUID
    language: Language
    emit: Emit


@dataclass(frozen=True, slots=True)
class RagResult:
    """``chunks`` in the order of ``trace["retrieved_chunks"]``; empty when nothing was found. ``hitl`` is set when the
    user has to be asked back: what to go on with then."""

    chunks: list[Candidate]
    trace: dict[str, Any]
    has_documents: bool
    hitl: HitlResumeState | None = None


def _merge_trace(existing: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {**existing, **new}


class RagState(TypedDict, total=False):
    """What the stages hand on. Each writes the trace fields it knows to be true."""

    query: str
    candidates: list[Candidate]
    has_documents: bool
    trace: Annotated[dict[str, Any], _merge_trace]


class RetrievalPipeline:
    """Finds the evidence for one question among the documents that the user sees."""

    def __init__(self, library: Library, config: RagConfig, reranker: Reranker | None = None) -> None:
        self._library = library
        self._config = config
        self._reranker: Reranker = reranker or NoReranker()
        self._graph = self._compile()

    async def run(
        self, query: str, user_id: UUID, language: Language, emit: Emit, *, resume: HitlResume | None = None
    ) -> RagResult:
        """The evidence for ``query`` and the trace of how it was found. Storage and embedding errors pass through.

        With ``resume`` it goes on with an answered question back, whose refined question ``query`` is.
        """
        state = await self._graph.ainvoke(  # pyright: ignore[reportUnknownMemberType]  # a bare Command in its overloads
            {"query": query, "trace": {"query": query}}, context=RagRequest(user_id, language, emit)
        )
        return RagResult(state["candidates"], state["trace"], state.get("has_documents", True))

    def _compile(self):
        graph = StateGraph(RagState, context_schema=RagRequest)
        stages = [self._plan, self._retrieve, self._merge, self._rerank, self._answer]
        names = ["plan", "retrieve", "merge", "rerank", "answer"]
        for name, run in zip(names, stages, strict=True):
            graph.add_node(name, _timed(name, run))  # pyright: ignore[reportUnknownMemberType]  # a bare CachePolicy in its overloads
        for before, after in zip([START, *names], [*names, END], strict=True):
            graph.add_edge(before, after)
        return graph.compile()  # pyright: ignore[reportUnknownMemberType]  # a bare BaseCache in its signature

    async def _plan(self, state: RagState) -> RagState:
        """The setting of this retrieval; every question is looked up as it is."""
        config, candidate_k = self._config, self._config.candidate_k()
        trace: dict[str, Any] = {
            "retrieval_stage": "initial",
            "retrieval_pipeline": self._pipeline_name(),
            "candidate_k": candidate_k.value,
            "candidate_k_source": candidate_k.source,
            "retrieval_candidate_multiplier": config.retrieval_candidate_multiplier,
            "retrieval_top_k": config.retrieval_top_k,
            "leaf_retrieve_level": config.leaf_retrieve_level,
        }
        if candidate_k.error is not None:
            trace["candidate_k_config_error"] = candidate_k.error
        return {"trace": trace}

    def _pipeline_name(self) -> str:
        stages = {"recall": True, "merge": self._config.auto_merge_enabled, "rerank": self._reranker.enabled}
        return "_".join(stage for stage, on in stages.items() if on)

    async def _retrieve(self, state: RagState, runtime: Runtime[RagRequest]) -> RagState:
        request, query = runtime.context, state.get("query", "")
        request.emit("🔍", say("step_searching", request.language), query)
        recall = await self._library.recall(
            request.user_id, query, self._config.candidate_k().value, self._config.leaf_retrieve_level
        )
        found = candidates(recall.hits)
        request.emit("📚", say("step_recalled", request.language, count=len(found)), recall.mode)
        trace = {
            "retrieval_mode": recall.mode,
            "recall_count": len(found),
            "initial_retrieved_chunks": [evidence(chunk, text=False) for chunk in found],
        }
        return {"candidates": found, "trace": trace}

    async def _merge(self, state: RagState, runtime: Runtime[RagRequest]) -> RagState:
        request, config, found = runtime.context, self._config, state.get("candidates", [])
        merged = Merged(list(found))
        if config.auto_merge_enabled:
            merged = await auto_merge(
                found,
                config.leaf_retrieve_level,
                config.auto_merge_threshold,
                lambda ids: self._library.chunks(request.user_id, ids),
            )
        if merged.steps:
            request.emit("🧩", say("step_merged", request.language, count=merged.replaced))
        trace = {
            "auto_merge_enabled": config.auto_merge_enabled,
            "auto_merge_applied": merged.steps > 0,
            "auto_merge_threshold": config.auto_merge_threshold,
            "auto_merge_replaced_chunks": merged.replaced,
            "auto_merge_steps": merged.steps,
            "post_merge_candidate_count": len(merged.candidates),
        }
        return {"candidates": merged.candidates, "trace": trace}

    async def _rerank(self, state: RagState, runtime: Runtime[RagRequest]) -> RagState:
        request = runtime.context
        reranked = await rerank(self._reranker, self._config, state.get("query", ""), state.get("candidates", []))
        if reranked.applied:
            label = say("step_reranked", request.language, count=reranked.trace["candidate_count"])
            request.emit("⚖️", label, self._reranker.model or "")
        elif "rerank_error" in reranked.trace:
            request.emit("⚠️", say("step_rerank_failed", request.language))
        return {"candidates": reranked.candidates, "trace": reranked.trace}

    async def _answer(self, state: RagState, runtime: Runtime[RagRequest]) -> RagState:
        request, kept = runtime.context, state.get("candidates", [])
        has_documents = bool(kept) or await self._library.has_documents(request.user_id)
        if kept:
            request.emit("✅", say("step_selected", request.language, count=len(kept)), _sources(kept))
        else:
            label = "step_nothing_found" if has_documents else "step_no_documents"
            request.emit("📭", say(label, request.language))
        trace: dict[str, Any] = {
            "retrieval_empty": not kept,
            "route": "answer" if kept else "no_knowledge",
            "retrieval_status": "answerable" if kept else "no_knowledge",
            "retrieved_chunks": [evidence(chunk) for chunk in kept],
        }
        return {"has_documents": has_documents, "trace": trace}


def _timed(name: str, run: Callable[..., Awaitable[RagState]]) -> Callable[..., Awaitable[RagState]]:
    """``run`` as a stage; the graph still sees its parameters."""

    @wraps(run)
    async def timed(*args: Any, **kwargs: Any) -> RagState:
        with stage(name):
            return await run(*args, **kwargs)

    return timed


def evidence(chunk: Candidate, *, text: bool = True) -> dict[str, Any]:
    """``chunk`` as an item of the trace's evidence lists (``RetrievedChunk``), absent values left out."""
    fields = {
        "filename": chunk.filename,
        "page_number": chunk.page_number,
        "text": chunk.text if text else None,
        "score": chunk.score,
        "rrf_rank": chunk.rank,
        "rerank_score": chunk.rerank_score,
        "chunk_id": str(chunk.chunk_id),
        "document_id": str(chunk.document_id),
        "document_version": chunk.document_version,
        "heading": chunk.heading,
    }
    return {key: value for key, value in fields.items() if value is not None}


def _sources(chunks: Sequence[Candidate]) -> str:
    return ", ".join(dict.fromkeys(chunk.filename for chunk in chunks))
