"""The chat protocol: requests and responses, trace, clarification state and the event union of the streams.

Field names are those that existing frontends of this kind read. The normalizers keep a stored trace readable
for ever: whatever an older or newer version wrote, what still makes sense is kept and the rest is dropped.
"""

from datetime import datetime
from typing import Annotated, Any, Literal, Protocol, get_type_hints

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, TypeAdapter, ValidationError, field_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from backend.errors import EVENT_CODES
from backend.schemas.base import RequestSchema, StrictSchema
from backend.text import clean_json, is_blank

Route = Literal["answer", "rewrite", "clarify", "scope_select", "no_knowledge"]
RetrievalStatus = Literal[
    "answerable", "partial", "needs_rewrite", "needs_clarification", "needs_scope_selection", "no_knowledge"
]
RunStatus = Literal["running", "completed", "stopped", "failed", "interrupted"]
MessageStatus = Literal["pending", "completed", "stopped", "failed", "interrupted"]
FinishReason = Literal["stop", "length", "content_filter", "clarification", "limit", "other"]
Flag = Literal["degraded", "limit_reached", "truncated", "empty_answer"]
Confidence = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]

SESSION_ID_PATTERN = r"^[A-Za-z0-9._:-]{1,120}$"


class Emit(Protocol):
    """Reports one retrieval step to whoever watches; callable from any thread, never raises, never blocks."""

    def __call__(
        self, icon: str, label: str, detail: str = "", *, group: str | None = None, group_label: str | None = None
    ) -> None: ...


# --- trace -----------------------------------------------------------------------------------------------------------


class _TraceSchema(StrictSchema):
    """Trace values are not coerced: a value of the wrong type is a fault of the writer, and is dropped on reading."""

    model_config = ConfigDict(extra="forbid", strict=True)


class RetrievedChunk(_TraceSchema):
    """One piece of evidence. ``score`` is the recall score, ``rrf_rank`` the rank after fusion, from 1."""

    filename: Annotated[str, Field(min_length=1)]
    page_number: str | int | None = None
    text: str | None = None
    score: Number | None = None
    rrf_rank: int | None = None
    rerank_score: Number | None = None
    chunk_id: str | None = None
    document_id: str | None = None
    document_version: int | None = None
    heading: str | None = None


class RagTraceFields(_TraceSchema):
    """What main and sub trace share: how the evidence of one question was found. All optional."""

    tool_used: bool | None = None
    tool_name: str | None = None
    query: str | None = None
    retrieval_stage: Literal["initial", "rewritten", "synthesis", "hitl_targeted_retrieval"] | None = None

    complexity: Literal["simple", "complex"] | None = None
    complexity_reason: str | None = None
    sub_questions: list[str] | None = None
    sub_agent_count: int | None = None
    synthesis_merged_count: int | None = None

    retrieval_mode: Literal["hybrid", "dense", "sparse"] | None = None
    retrieval_pipeline: str | None = None
    candidate_k: int | None = None
    candidate_k_source: Literal["env", "multiplier"] | None = None
    candidate_k_config_error: str | None = None
    retrieval_candidate_multiplier: int | None = None
    retrieval_top_k: int | None = None
    recall_count: int | None = None
    leaf_retrieve_level: int | None = None

    auto_merge_enabled: bool | None = None
    auto_merge_applied: bool | None = None
    auto_merge_threshold: int | None = None
    auto_merge_replaced_chunks: int | None = None
    auto_merge_steps: int | None = None
    post_merge_candidate_count: int | None = None

    rerank_enabled: bool | None = None
    rerank_applied: bool | None = None
    rerank_model: str | None = None
    rerank_endpoint: str | None = None
    rerank_error: str | None = None
    rerank_timeout_seconds: Number | None = None
    rerank_min_score: Number | None = None
    candidate_count: int | None = None
    post_rerank_count: int | None = None
    post_threshold_count: int | None = None
    retrieval_empty: bool | None = None

    initial_retrieved_chunks: list[RetrievedChunk] | None = None
    route: Route | None = None
    retrieval_status: RetrievalStatus | None = None
    evidence_relevance: Literal["none", "weak", "strong"] | None = None
    evidence_answerability: Literal["none", "partial", "sufficient"] | None = None
    evidence_ambiguity: Literal["none", "missing_slot", "multiple_candidates"] | None = None
    evidence_confidence: Confidence | None = None
    evidence_reason: str | None = None

    rewrite_method: Literal["step_back", "hyde"] | None = None
    rewritten_query: str | None = None
    step_back_question: str | None = None
    hyde_document: str | None = None
    rewrite_retrieved_chunks: list[RetrievedChunk] | None = None

    retrieved_chunks: list[RetrievedChunk] | None = None

    missing_slots: list[str] | None = None
    hitl_prompt: str | None = None
    hitl_options: list[str] | None = None
    hitl_resumed: bool | None = None
    hitl_answer: str | None = None
    hitl_resume_strategy: Literal["targeted_retrieval"] | None = None
    hitl_resume_from_status: str | None = None
    hitl_resume_from_route: str | None = None
    hitl_targeted_retrieved_chunks: list[RetrievedChunk] | None = None


class RagSubTrace(RagTraceFields):
    """The trace of one sub-question."""


class RagTrace(RagTraceFields):
    """The trace of a whole question."""

    sub_traces: list[RagSubTrace] | None = None


class _DescribedAs:
    """A dictionary that JSON schemas describe as ``model``; validation leaves it alone."""

    def __init__(self, model: type[StrictSchema]) -> None:
        self._model = model

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self._model.__pydantic_core_schema__)


TraceDict = Annotated[dict[str, Any], _DescribedAs(RagTrace)]
"""What :func:`normalize_rag_trace` gives."""

EVIDENCE_FIELDS = frozenset(
    {"initial_retrieved_chunks", "rewrite_retrieved_chunks", "retrieved_chunks", "hitl_targeted_retrieved_chunks"}
)


def _field_adapters(model: type[StrictSchema]) -> dict[str, TypeAdapter[Any]]:
    strict = ConfigDict(strict=True)
    return {
        name: TypeAdapter[Any](hint, config=strict)
        for name, hint in get_type_hints(model, include_extras=True).items()
        if name in model.model_fields and name not in EVIDENCE_FIELDS
    }


_CHUNK_ADAPTERS = _field_adapters(RetrievedChunk)
_TRACE_ADAPTERS = _field_adapters(RagTraceFields)


def _valid_fields(value: dict[Any, Any], adapters: dict[str, TypeAdapter[Any]]) -> dict[str, Any]:
    """The declared fields of ``value`` that have a value of the declared type; ``None`` and the rest are dropped."""
    kept: dict[str, Any] = {}
    for name, adapter in adapters.items():
        if value.get(name) is None:
            continue
        try:
            kept[name] = adapter.validate_python(clean_json(value[name]))
        except ValidationError:
            continue
    return kept


def _normalize_chunks(chunks: Any) -> list[dict[str, Any]]:
    """Evidence items that have a filename, each with its declared and valid keys only. No list gives ``[]``."""
    if not isinstance(chunks, list):
        return []
    items: list[Any] = chunks  # pyright: ignore[reportUnknownVariableType]
    kept = [_valid_fields(item, _CHUNK_ADAPTERS) for item in items if isinstance(item, dict)]  # pyright: ignore[reportUnknownArgumentType]
    return [item for item in kept if "filename" in item]


def _normalize_trace_fields(trace: dict[str, Any]) -> dict[str, Any]:
    """The declared and valid common fields of ``trace``, each evidence list normalized."""
    fields = _valid_fields(trace, _TRACE_ADAPTERS)
    for name in RagTraceFields.model_fields:
        if name in EVIDENCE_FIELDS and isinstance(trace.get(name), list):
            fields[name] = _normalize_chunks(trace[name])
    return fields


def normalize_rag_sub_trace(trace: Any) -> dict[str, Any] | None:
    """The trace of a sub-question with what is valid in it; ``None`` when nothing is."""
    if not isinstance(trace, dict):
        return None
    fields = _normalize_trace_fields(trace)  # pyright: ignore[reportUnknownArgumentType]
    return RagSubTrace.model_validate(fields).model_dump(exclude_none=True) or None


def normalize_rag_trace(trace: Any) -> dict[str, Any] | None:
    """The trace of a question with what is valid in it, sub traces too; ``None`` when nothing is.

    Never raises; normalizing twice changes nothing.
    """
    if not isinstance(trace, dict):
        return None
    source: dict[str, Any] = trace  # pyright: ignore[reportUnknownVariableType]
    fields = _normalize_trace_fields(source)
    if isinstance(source.get("sub_traces"), list):
        subs = (normalize_rag_sub_trace(item) for item in source["sub_traces"])
        fields["sub_traces"] = [item for item in subs if item is not None]
    return RagTrace.model_validate(fields).model_dump(exclude_none=True) or None


# --- clarification ---------------------------------------------------------------------------------------------------

HitlRoute = Literal["clarify", "scope_select"]
HitlStatus = Literal["needs_clarification", "needs_scope_selection"]


class HitlResumeState(StrictSchema):
    """The smallest snapshot from which an interrupted retrieval goes on."""

    question: Annotated[str, Field(min_length=1)]
    route: HitlRoute
    retrieval_status: HitlStatus
    rewrite_count: Annotated[int, Field(ge=0)] = 0
    complexity: Literal["simple", "complex"] | None = None
    complexity_reason: str | None = None
    sub_questions: Annotated[list[str], Field(max_length=4)] = []


class PendingHitlState(StrictSchema):
    """A question that waits for the user. ``original_question`` may span several clarifications."""

    id: str
    original_question: str
    prompt: str
    options: list[str] = []
    route: HitlRoute
    retrieval_status: HitlStatus
    answers: list[str] = []
    resume_state: HitlResumeState
    created_at: datetime


class HitlInfo(StrictSchema):
    """What a client is told of a pending question."""

    id: str
    prompt: str
    options: list[str]
    route: HitlRoute
    retrieval_status: HitlStatus
    original_question: str


# --- requests and responses ------------------------------------------------------------------------------------------


class ChatRequest(RequestSchema):
    """A question. Its length is checked against ``MAX_MESSAGE_CHARS`` by the service (413)."""

    message: str
    session_id: Annotated[str, Field(pattern=SESSION_ID_PATTERN)] = "default_session"
    client_message_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    hitl_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    multitask: Literal["reject", "interrupt"] = "reject"
    collections: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=50)] | None = None

    @field_validator("message")
    @classmethod
    def _not_blank(cls, value: str) -> str:
        if is_blank(value):
            raise ValueError("message is blank")
        return value

    @field_validator("session_id")
    @classmethod
    def _no_dots(cls, value: str) -> str:
        if value in {".", ".."}:
            raise ValueError("session_id must not be a relative path")
        return value


class Usage(StrictSchema):
    """Tokens of a turn, all its model calls together."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class Citation(StrictSchema):
    """``index`` n is the n-th item of ``rag_trace.retrieved_chunks``; ``quote`` has 300 characters at most.

    ``deleted``: the document is no longer there, nothing of its content is told any more.
    """

    index: int
    chunk_id: str | None
    document_id: str | None
    filename: str
    page_number: str | int | None
    heading: str | None
    quote: str
    score: float | None
    deleted: Annotated[bool, Field(exclude_if=lambda value: not value)] = False


class ErrorInfo(StrictSchema):
    """Why a run did not complete. ``retry_after`` is in seconds."""

    code: Annotated[str, Field(json_schema_extra={"enum": [*sorted(EVENT_CODES)]})]
    content: str
    retryable: bool
    retry_after: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None


class ChatResponse(StrictSchema):
    """The stored end of a turn; always 200 once the turn was claimed, whatever its end."""

    response: str
    rag_trace: TraceDict | None
    run_id: str
    message_id: str
    status: RunStatus
    citations: list[Citation]
    hitl: HitlInfo | None
    usage: Usage | None
    finish_reason: FinishReason | None
    flags: list[Flag]
    error: ErrorInfo | None


class RunInfo(StrictSchema):
    """A run as stored."""

    run_id: str
    session_id: str
    message_id: str
    status: RunStatus
    finish_reason: FinishReason | None
    error: ErrorInfo | None
    last_seq: int
    created_at: datetime
    finished_at: datetime | None


class StopResponse(StrictSchema):
    """The status after the wait of one second at most; ``running`` means that the stop is under way."""

    run_id: str
    status: RunStatus


class UploadedFile(StrictSchema):
    """A file that the user put into a thread. ``path`` is where tools find it; ``size`` is in bytes."""

    filename: str
    size: int
    path: str
    mime_type: str


class TodoItem(StrictSchema):
    """One step of the plan that the assistant works by."""

    content: str
    status: Literal["pending", "in_progress", "completed"]


class MessageInfo(StrictSchema):
    """One message of the history. ``attachments`` are the files that were uploaded with it."""

    type: Literal["human", "ai", "system"]
    content: str
    timestamp: datetime
    rag_trace: TraceDict | None = None
    id: str
    status: MessageStatus
    citations: list[Citation] = []
    run_id: str | None = None
    usage: Usage | None = None
    finish_reason: FinishReason | None = None
    flags: list[Flag] = []
    attachments: list[UploadedFile] = []


class SessionMessagesResponse(StrictSchema):
    """A page of a session's messages, ascending. ``hitl`` is the pending question."""

    messages: list[MessageInfo]
    next_before: str | None = None
    hitl: HitlInfo | None = None


class SessionInfo(StrictSchema):
    """A session in the list."""

    session_id: str
    title: str | None
    updated_at: datetime
    message_count: int


class SessionListResponse(StrictSchema):
    """A page of sessions, newest first."""

    sessions: list[SessionInfo]
    next_cursor: str | None = None


class SessionDeleteResponse(StrictSchema):
    """What a deletion answers."""

    session_id: str
    message: str


class HitlDismissResponse(StrictSchema):
    """What dropping a pending question answers."""

    session_id: str
    message: str


class SessionPatch(RequestSchema):
    """A new title, one line."""

    title: Annotated[str, Field(min_length=1, max_length=200)]


# --- events ----------------------------------------------------------------------------------------------------------


def _absent(value: object) -> bool:
    return value is None


class RagStep(StrictSchema):
    """One step of retrieval. Times are in milliseconds: since the start, and since the step before."""

    icon: str
    label: str
    detail: str
    elapsed_ms: float
    stage_elapsed_ms: float
    group: Annotated[str | None, Field(exclude_if=_absent)] = None
    group_label: Annotated[str | None, Field(exclude_if=_absent)] = None


def _always_sent(schema: JsonSchemaValue) -> None:
    """``type`` and ``seq`` have defaults here and are in every event on the wire."""
    schema["required"] = ["type", "seq", *(name for name in schema.get("required", []) if name not in {"type", "seq"})]


class _Event(StrictSchema):
    model_config = ConfigDict(extra="forbid", json_schema_extra=_always_sent)

    seq: int = 0


class RunStartedEvent(_Event):
    """The first event of every run."""

    type: Literal["run_started"] = "run_started"
    run_id: str
    session_id: str
    message_id: str
    user_message_id: str


class RagStepEvent(_Event):
    """A retrieval step, while it happens."""

    type: Literal["rag_step"] = "rag_step"
    step: RagStep


class SessionTitleEvent(_Event):
    """The title by rule; first turn only."""

    type: Literal["session_title"] = "session_title"
    title: str
    session_id: str


class ContentEvent(_Event):
    """A piece of the answer; the stored text is the concatenation of all of them."""

    type: Literal["content"] = "content"
    content: str


class UploadedFilesEvent(_Event):
    """The files of the thread, when they have changed since the last turn."""

    type: Literal["uploaded_files"] = "uploaded_files"
    files: list[UploadedFile]


class ArtifactsEvent(_Event):
    """The files that the assistant has handed back so far, in this turn and earlier, when there are more."""

    type: Literal["artifacts"] = "artifacts"
    artifacts: list[str]


class TodosEvent(_Event):
    """The plan of the assistant, when it changes."""

    type: Literal["todos"] = "todos"
    todos: list[TodoItem]


class TraceEvent(_Event):
    """How the answer was found; exactly once, ``None`` when nothing was retrieved."""

    type: Literal["trace"] = "trace"
    rag_trace: TraceDict | None


class CitationsEvent(_Event):
    """The sources of the numbers in the answer; exactly once."""

    type: Literal["citations"] = "citations"
    citations: list[Citation]


class HitlRequestEvent(_Event):
    """A question back to the user."""

    type: Literal["hitl_request"] = "hitl_request"
    hitl: HitlInfo


class ErrorEvent(_Event, ErrorInfo):
    """Why the run did not complete."""

    type: Literal["error"] = "error"


class DoneEvent(_Event):
    """The end of every run; what it names is committed."""

    type: Literal["done"] = "done"
    run_id: str
    message_id: str
    status: RunStatus
    usage: Usage | None
    finish_reason: FinishReason | None
    flags: list[Flag]


class GapEvent(_Event):
    """Events ``from`` to ``to`` are gone; ``content`` is the whole text so far and replaces what the client has."""

    type: Literal["gap"] = "gap"
    from_: Annotated[int, Field(serialization_alias="from")]
    to: int
    content: str


ChatEvent = (
    RunStartedEvent
    | RagStepEvent
    | SessionTitleEvent
    | ContentEvent
    | UploadedFilesEvent
    | ArtifactsEvent
    | TodosEvent
    | TraceEvent
    | CitationsEvent
    | HitlRequestEvent
    | ErrorEvent
    | DoneEvent
    | GapEvent
)


def encode_event(event: ChatEvent) -> bytes:
    """The one-line JSON of ``event``, made once and framed by every protocol.

    U+0085, U+2028 and U+2029 are escaped: clients that split on "any line end" would cut the event there.
    """
    text = event.model_dump_json(by_alias=True)
    if not text.isascii():
        text = text.replace("\u0085", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return text.encode()
