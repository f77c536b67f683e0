"""The retrieval graph. Compiled once, run for each question.

plan ─ simple ──> lookup ──> finish
  │                 │ ▲
  │                 ▼ │
  │               rewrite (once)
  └─ complex ─> part (one for each sub-question, at once) ──> synthesize ──> finish
"""

import operator
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict, cast
from uuid import UUID

from langchain_core.language_models import BaseChatModel
from langchain_core.messages.ai import UsageMetadata, add_usage
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Send

from backend.catalogue import Language, say
from backend.infra.rerank import NoReranker, Reranker
from backend.rag.config import RagConfig
from backend.rag.decisions import DecisionInput, Route
from backend.rag.grade import Resolved, question_back, resolve_route, scope_options
from backend.rag.lookup import Found, Lookup, Lookups, RagRequest
from backend.rag.plan import Plan, make_plan
from backend.rag.resume import HitlResume, may_ask_again
from backend.rag.retrieve import Candidate, Library
from backend.rag.rewrite import Rewrite, rewrite
from backend.rag.structured import MAX_PASSAGE_TOKENS, NO_RULE, DecisionModel
from backend.rag.synthesize import Part, synthesize
from backend.rag.trace import evidence_list
from backend.schemas.chat import Emit, HitlResumeState
from backend.tracing import stage

MAX_REWRITES = 1
"""For one question, its continuations after a question back counted."""


@dataclass(frozen=True, slots=True)
class RagResult:
    """``chunks`` in the order of ``trace["retrieved_chunks"]``; empty when nothing was found or nothing answers.

    ``hitl`` is set when ``route`` is ``clarify`` or ``scope_select``: what a continuation starts from. The question
    back itself is in the trace (``hitl_prompt``, ``hitl_options``). ``usage`` are the tokens of all decisions.
    """

    chunks: list[Candidate]
    trace: dict[str, Any]
    has_documents: bool
    route: Route
    hitl: HitlResumeState | None = None
    usage: UsageMetadata | None = None


@dataclass(frozen=True, slots=True)
class _Request(RagRequest):
    """The request of one run."""

    resume: HitlResume | None = None


def _merge_trace(existing: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return {**existing, **new}


def _add_usage(existing: UsageMetadata | None, new: UsageMetadata | None) -> UsageMetadata | None:
    """``None`` as long as nobody told any."""
    return existing if new is None else add_usage(existing, new)


Update = dict[str, Any]
"""The fields of the state that a stage sets."""


class RagState(TypedDict):
    """What the stages hand on. Each writes the trace fields it knows to be true.

    ``lookup`` is the look-up to make and ``found`` what the last one found; ``resolved`` and ``kept`` are where the
    question goes and with which evidence.
    """

    question: str
    plan: NotRequired[Plan]
    lookup: Lookup
    found: Found
    rewrites: int
    parts: Annotated[list[Part], operator.add]
    usage: Annotated[UsageMetadata | None, _add_usage]
    resolved: Resolved
    kept: list[Candidate]
    has_documents: bool
    trace: Annotated[dict[str, Any], _merge_trace]


class PartState(TypedDict):
    """What a sub-question starts with."""

    index: int
    question: str


class RetrievalPipeline:
    """Finds the evidence for one question among the documents that the user sees.

    ``fast`` plans and rewrites, ``grade`` judges passages. Their faults never fail a question: each step has its
    default (docs/retrieval.md), and the trace names what was not decided.
    """

    def __init__(
        self,
        library: Library,
        config: RagConfig,
        reranker: Reranker | None = None,
        *,
        fast: BaseChatModel,
        grade: BaseChatModel,
        passage_tokens: int = MAX_PASSAGE_TOKENS,
    ) -> None:
        """``passage_tokens``: what ``grade`` may be given to read, as far as its window goes."""
        self._library = library
        self._config = config
        self._reranker: Reranker = reranker or NoReranker()
        self._fast = DecisionModel(fast, config.decision_timeout_seconds)
        grader = DecisionModel(grade, config.decision_timeout_seconds, passage_tokens)
        self._lookups = Lookups(library, config, self._reranker, grader)
        self._graph = self._compile()

    async def run(
        self,
        query: str,
        user_id: UUID,
        language: Language,
        emit: Emit,
        *,
        resume: HitlResume | None = None,
        collections: Collection[UUID] | None = None,
    ) -> RagResult:
        """The evidence for ``query`` and the trace of how it was found. Storage errors pass through.

        With ``resume`` it goes on with an answered question back, whose refined question ``query`` is. With
        ``collections`` only documents of these collections of the user's count.
        """
        state = await self._graph.ainvoke(  # pyright: ignore[reportUnknownMemberType]  # a bare Command in its overloads
            cast("RagState", {"question": query, "trace": {"query": query}, "rewrites": 0, "parts": [], "usage": None}),
            context=_Request(user_id, language, emit, collections, resume),
        )
        resolved = cast("Resolved", state["resolved"])
        trace = cast("dict[str, Any]", state["trace"])
        asked = query if resume is None else resume.question
        hitl = _resume_state(asked, resolved, trace, _rewrites(state, resume))
        return RagResult(state["kept"], trace, state["has_documents"], resolved.route, hitl, state["usage"])

    def _compile(self):
        graph = StateGraph(RagState, context_schema=_Request)
        nodes: dict[str, Callable[..., Awaitable[Any]]] = {
            "plan": self._plan,
            "lookup": self._lookup,
            "rewrite": self._rewrite,
            "part": self._part,
            "synthesize": self._synthesize,
            "finish": self._finish,
        }
        for name, run in nodes.items():
            graph.add_node(name, run)  # pyright: ignore[reportUnknownMemberType, reportArgumentType, reportCallIssue]  # a bare CachePolicy in its overloads
        graph.add_edge(START, "plan")
        graph.add_conditional_edges("plan", _after_plan, ["lookup", "part"])
        graph.add_conditional_edges("lookup", _after_lookup, ["rewrite", "finish"])
        graph.add_conditional_edges("rewrite", _after_rewrite, ["lookup", "finish"])
        graph.add_edge("part", "synthesize")
        graph.add_edge("synthesize", "finish")
        graph.add_edge("finish", END)
        return graph.compile()  # pyright: ignore[reportUnknownMemberType]  # a bare BaseCache in its signature

    async def _plan(self, state: RagState, runtime: Runtime[_Request]) -> Update:
        """The setting of this retrieval, and how the question is looked up. A resumed question has its plan."""
        request, question = runtime.context, state["question"]
        trace = self._setting()
        if request.resume is not None:
            answers = request.resume.answers
            files = answers if request.resume.state.route == "scope_select" else []
            lookup = Lookup(question, question, files=files)
            request.emit("↩️", say("step_resumed", request.language), answers[-1])
            return {"lookup": lookup, "trace": trace | _resumed(request.resume)}
        with stage("plan"):
            plan = await make_plan(self._fast, DecisionInput(question, request.language))
        if plan.sub_questions:
            request.emit("🧭", say("step_split", request.language, count=len(plan.sub_questions)))
        elif plan.failure is not None:
            request.emit("⚠️", say("step_plan_failed", request.language))
        trace |= {
            "retrieval_stage": "initial",
            "complexity": plan.complexity,
            "complexity_reason": plan.reason,
            "sub_questions": plan.sub_questions,
        }
        return {"plan": plan, "lookup": Lookup(question, question), "trace": trace, "usage": plan.usage}

    def _setting(self) -> dict[str, Any]:
        config, candidate_k = self._config, self._config.candidate_k()
        stages = {"recall": True, "merge": config.auto_merge_enabled, "rerank": self._reranker.enabled}
        trace: dict[str, Any] = {
            "retrieval_pipeline": "_".join(stage for stage, on in stages.items() if on),
            "candidate_k": candidate_k.value,
            "candidate_k_source": candidate_k.source,
            "retrieval_candidate_multiplier": config.retrieval_candidate_multiplier,
            "retrieval_top_k": config.retrieval_top_k,
            "leaf_retrieve_level": config.leaf_retrieve_level,
        }
        if candidate_k.error is not None:
            trace["candidate_k_config_error"] = candidate_k.error
        return trace

    async def _lookup(self, state: RagState, runtime: Runtime[_Request]) -> Update:
        """The first look-up, or the second with the rewritten query."""
        request, lookup = runtime.context, state["lookup"]
        found = await self._lookups.run(lookup, request)
        again = state["rewrites"] > 0
        may_rewrite = _rewrites(state, request.resume) < MAX_REWRITES
        resolved = _route(found, may_rewrite=may_rewrite, may_ask=may_ask_again(request.resume))
        recalled = evidence_list(found.recalled, text=False)
        name = "initial" if request.resume is None else "hitl_targeted"
        trace = {**found.trace, f"{'rewrite' if again else name}_retrieved_chunks": recalled}
        usage = found.graded.usage
        return {"found": found, "resolved": resolved, "kept": found.kept, "trace": trace, "usage": usage}

    async def _rewrite(self, state: RagState, runtime: Runtime[_Request]) -> Update:
        """The one second query. Without one the route is resolved anew from what was found."""
        request, lookup, found = runtime.context, state["lookup"], state["found"]
        with stage("rewrite"):
            given = DecisionInput(lookup.question, request.language, found.kept or found.recalled)
            rewritten = await rewrite(self._fast, given)
        if rewritten.query is None:
            return self._not_rewritten(state, request, rewritten)
        request.emit("✏️", say("step_rewritten", request.language))
        trace = rewritten.trace if request.resume else {**rewritten.trace, "retrieval_stage": "rewritten"}
        second = Lookup(lookup.question, rewritten.query, earlier=found.recalled, files=lookup.files)
        return {"lookup": second, "rewrites": 1, "trace": trace, "usage": rewritten.usage}

    def _not_rewritten(self, state: RagState, request: _Request, rewritten: Rewrite) -> Update:
        found = state["found"]
        if rewritten.failure != NO_RULE:
            request.emit("⚠️", say("step_rewrite_failed", request.language))
        resolved = _route(found, may_rewrite=False, may_ask=may_ask_again(request.resume))
        reason = f"not rewritten: {rewritten.failure}"
        judged = found.trace.get("evidence_reason")
        trace = {"evidence_reason": f"{judged}; {reason}" if judged else reason}
        return {"resolved": resolved, "trace": trace, "usage": rewritten.usage}

    async def _part(self, state: PartState, runtime: Runtime[_Request]) -> Update:
        """One sub-question: looked up once, its steps in a group of their own."""
        index, question = state["index"], state["question"]
        request = runtime.context.grouped(f"part-{index + 1}", question)
        found = await self._lookups.run(Lookup(question, question), request)
        resolved = _route(found, may_rewrite=False, may_ask=True)
        asking = resolved.route in ("clarify", "scope_select")
        asks = question_back(found.graded.decision, resolved.route, found.kept, request.language) if asking else {}
        return {"parts": [Part(index, found, resolved, asks)], "usage": found.graded.usage}

    async def _synthesize(self, state: RagState, runtime: Runtime[_Request]) -> Update:
        request = runtime.context
        with stage("synthesize"):
            whole = synthesize(state["parts"], self._config.retrieval_top_k)
        request.emit("🧶", say("step_synthesized", request.language, count=len(whole.kept)))
        trace = {**whole.trace, "retrieval_stage": "synthesis"}
        return {"resolved": whole.resolved, "kept": whole.kept, "trace": trace}

    async def _finish(self, state: RagState, runtime: Runtime[_Request]) -> Update:
        """The evidence as it goes out, or why there is none, or what the user is asked."""
        request, resolved, kept = runtime.context, state["resolved"], state["kept"]
        has_documents = bool(kept) or await self._library.has_documents(request.user_id)
        trace: dict[str, Any] = {}
        if resolved.route == "no_knowledge":
            kept = []
            label = "step_nothing_found" if has_documents else "step_no_documents"
            request.emit("📭", say(label, request.language))
        elif resolved.route == "answer":
            sources = ", ".join(dict.fromkeys(chunk.filename for chunk in kept))
            request.emit("✅", say("step_selected", request.language, count=len(kept)), sources)
        else:
            request.emit("🙋", say("step_asking", request.language))
            if "hitl_prompt" not in state["trace"]:
                decision = state["found"].graded.decision
                trace = question_back(decision, resolved.route, kept, request.language)
        trace |= {
            "retrieval_empty": not kept,
            "route": resolved.route,
            "retrieval_status": resolved.status,
            "retrieved_chunks": evidence_list(kept),
        }
        return {"has_documents": has_documents, "kept": kept, "trace": trace}


def _route(found: Found, *, may_rewrite: bool, may_ask: bool) -> Resolved:
    """Where a question goes with what one look-up found."""
    decision = found.graded.decision
    choices = len(scope_options(decision, found.kept)) > 1
    return resolve_route(found.evidence, decision, may_rewrite=may_rewrite, may_ask=may_ask, choices=choices)


def _after_plan(state: RagState) -> str | list[Send]:
    plan = state.get("plan")
    if plan is None or not plan.sub_questions:
        return "lookup"
    return [Send("part", PartState(index=at, question=part)) for at, part in enumerate(plan.sub_questions)]


def _after_lookup(state: RagState) -> Literal["rewrite", "finish"]:
    return "rewrite" if state["resolved"].route == "rewrite" else "finish"


def _after_rewrite(state: RagState) -> Literal["lookup", "finish"]:
    return "lookup" if state["rewrites"] else "finish"


def _rewrites(state: RagState | dict[str, Any], resume: HitlResume | None) -> int:
    return state.get("rewrites", 0) + (resume.state.rewrite_count if resume else 0)


def _resumed(resume: HitlResume) -> dict[str, Any]:
    """The trace fields of a continuation: the plan and the end of the retrieval that it continues."""
    state = resume.state
    trace = {
        "retrieval_stage": "hitl_targeted_retrieval",
        "complexity": state.complexity,
        "complexity_reason": state.complexity_reason,
        "sub_questions": state.sub_questions,
        "hitl_resumed": True,
        "hitl_answer": resume.answers[-1],
        "hitl_resume_strategy": "targeted_retrieval",
        "hitl_resume_from_status": state.retrieval_status,
        "hitl_resume_from_route": state.route,
    }
    return {name: value for name, value in trace.items() if value is not None}


def _resume_state(question: str, resolved: Resolved, trace: dict[str, Any], rewrites: int) -> HitlResumeState | None:
    """What a continuation needs; ``None`` unless the user is asked back."""
    if resolved.route not in ("clarify", "scope_select"):
        return None
    return HitlResumeState.model_validate(
        {
            "question": question,
            "route": resolved.route,
            "retrieval_status": resolved.status,
            "rewrite_count": rewrites,
            "complexity": trace.get("complexity"),
            "complexity_reason": trace.get("complexity_reason"),
            "sub_questions": trace.get("sub_questions", []),
        }
    )
