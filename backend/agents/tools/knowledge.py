"""``search_knowledge_base``: evidence from the documents, once a turn."""

from typing import Any

from langchain.tools import ToolRuntime, tool
from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.messages.ai import add_usage
from langchain_core.tools import BaseTool

from backend.agents.context import AgentContext
from backend.agents.thread_state import ThreadState
from backend.rag.pipeline import RetrievalPipeline
from backend.rag.prompts import NO_DOCUMENTS, NO_KNOWLEDGE, numbered_chunks
from backend.rag.resume import HitlResume, refined_question
from backend.rag.trace import artifact
from backend.schemas.chat import HitlRoute
from backend.text import both_ends, clean_text

TOOL_NAME = "search_knowledge_base"
MAX_QUERY_CHARS = 8_000
LIMIT_REACHED = (
    "TOOL_CALL_LIMIT_REACHED: the knowledge base was already searched in this turn; answer with what was found."
)
ASKED: dict[HitlRoute, str] = {
    "clarify": "NEEDS_CLARIFICATION: the user is asked what exactly is meant.",
    "scope_select": "NEEDS_SCOPE_SELECTION: the user is asked which of several is meant.",
}
_RESUMED_CALL = "resumed01"
"""Nine letters and digits: no provider is stricter about the id of a call."""

Found = tuple[str, list[dict[str, Any]]]


def build_knowledge_tool(pipeline: RetrievalPipeline) -> BaseTool:
    """The tool over ``pipeline``.

    Its content is ``TOOL_CALL_LIMIT_REACHED: …``, ``NEEDS_CLARIFICATION: …``, ``NEEDS_SCOPE_SELECTION: …``,
    ``NO_KNOWLEDGE: …`` or the numbered chunks; its artifact the chunks as mappings (``RetrievedChunk`` fields and
    ``index`` from 1), empty for the others. The trace, and what a question back resumes from, go to the turn's context.
    """

    @tool(TOOL_NAME, response_format="content_and_artifact")
    async def search_knowledge_base(query: str, runtime: ToolRuntime[Any, ThreadState]) -> Found:
        """Search the user's documents. Returns numbered passages to cite as [n]. Can be called once a turn.

        Args:
            query: The question to look up, complete in itself, in the language of the user.
        """
        context: AgentContext = runtime.context
        if not context.acquire_knowledge_tool_slot():
            return LIMIT_REACHED, []
        return await _search(pipeline, context, both_ends(clean_text(query), MAX_QUERY_CHARS))

    return search_knowledge_base


async def resumed_search(pipeline: RetrievalPipeline, context: AgentContext, resume: HitlResume) -> list[BaseMessage]:
    """Goes on with an answered question: the tool's call and its result, as if a model had called it in this turn.

    The turn's only search is used by it. If it has to ask again, the context says so.
    """
    query = both_ends(clean_text(refined_question(resume)), MAX_QUERY_CHARS)
    context.acquire_knowledge_tool_slot()
    content, passages = await _search(pipeline, context, query, resume)
    call = ToolCall(name=TOOL_NAME, args={"query": query}, id=_RESUMED_CALL)
    result = ToolMessage(content, artifact=passages, tool_call_id=_RESUMED_CALL, name=TOOL_NAME)
    return [AIMessage(content="", tool_calls=[call]), result]


async def _search(
    pipeline: RetrievalPipeline, context: AgentContext, query: str, resume: HitlResume | None = None
) -> Found:
    asked = (query, context.user_id, context.language, context.emit_rag_step)
    result = await pipeline.run(*asked, resume=resume, collections=context.collections)
    if result.usage is not None:
        context.tool_usage = add_usage(context.tool_usage, result.usage)
    context.store_rag_trace({**result.trace, "tool_used": True, "tool_name": TOOL_NAME}, result.hitl)
    if result.hitl is not None:
        return ASKED[result.hitl.route], []
    if not result.chunks:
        return (NO_KNOWLEDGE if result.has_documents else NO_DOCUMENTS), []
    return numbered_chunks(result.chunks), artifact(result.chunks)
