from typing import Any, cast

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from backend.agents.tools.knowledge import build_knowledge_tool, resumed_search
from backend.rag.pipeline import RagResult
from backend.rag.resume import HitlResume
from backend.schemas.chat import HitlResumeState
from tests.agents.tools.running import call, context
from tests.rag.library import MemoryLibrary, leaf, pipeline


def build(library: MemoryLibrary):
    return build_knowledge_tool(pipeline(library))


FOUND = [leaf("b", text="Beta.", page_number=9, filename="b.pdf"), leaf("a", text="Alpha.", page_number=None)]


async def test_answers_the_numbered_chunks_and_stores_the_trace():
    library, ctx = MemoryLibrary(FOUND), context()
    message = await call(build(library), ctx, query="What is {alpha}?")
    assert message.content == "[1] b.pdf (Page 9): Beta.\n\n[2] manual.pdf: Alpha."
    assert [(item["index"], item["text"], item["filename"]) for item in message.artifact] == [
        (1, "Beta.", "b.pdf"),
        (2, "Alpha.", "manual.pdf"),
    ]
    assert library.recalls == [(ctx.user_id, "What is {alpha}?", 24, 3)]
    stored = ctx.take_rag_trace()
    assert stored is not None
    trace = stored.rag_trace
    assert trace is not None
    assert (trace["tool_used"], trace["tool_name"], trace["query"]) == (
        True,
        "search_knowledge_base",
        "What is {alpha}?",
    )
    numbered = [{"index": index, **chunk} for index, chunk in enumerate(trace["retrieved_chunks"], start=1)]
    assert numbered == message.artifact


class Asking:
    """A pipeline that asks back, and notes what it was asked."""

    def __init__(self, route: Any) -> None:
        status: Any = "needs_clarification" if route == "clarify" else "needs_scope_selection"
        self.state = HitlResumeState(question="q", route=route, retrieval_status=status)
        self.seen: list[tuple[str, HitlResume | None]] = []

    async def run(self, query: str, *_: Any, resume: HitlResume | None = None, **__: Any) -> RagResult:
        self.seen.append((query, resume))
        return RagResult([], {"route": self.state.route}, True, self.state.route, self.state)


@pytest.mark.parametrize(
    ("route", "content"), [("clarify", "NEEDS_CLARIFICATION: "), ("scope_select", "NEEDS_SCOPE_SELECTION: ")]
)
async def test_a_question_back_is_named_and_stored_with_what_it_resumes_from(route: Any, content: str):
    ctx, asking = context(), Asking(route)
    message = await call(build_knowledge_tool(cast(Any, asking)), ctx, query="q")
    assert str(message.content).startswith(content)
    assert message.artifact == []
    assert ctx.asks_back
    stored = ctx.take_rag_trace()
    assert stored is not None
    assert stored.hitl_resume_state == asking.state
    assert not ctx.asks_back


async def test_a_resumed_search_is_a_finished_call_and_uses_the_search_of_the_turn():
    ctx, asking = context(), Asking("clarify")
    resume = HitlResume("How long?", ["x" * 3_000], asking.state)
    call_message, result = await resumed_search(cast(Any, asking), ctx, resume)
    assert asking.seen == [("How long? " + "x" * 500, resume)]
    assert isinstance(call_message, AIMessage)
    assert isinstance(result, ToolMessage)
    (made,) = call_message.tool_calls
    assert (made["name"], made["args"]) == ("search_knowledge_base", {"query": asking.seen[0][0]})
    assert made["id"] == result.tool_call_id
    assert str(result.content).startswith("NEEDS_CLARIFICATION: ")
    assert not ctx.acquire_knowledge_tool_slot()


async def test_second_call_of_a_turn_is_refused_without_a_search():
    library, ctx = MemoryLibrary(FOUND), context()
    tool = build(library)
    await call(tool, ctx, query="one")
    trace = ctx.peek_rag_trace()
    message = await call(tool, ctx, query="two")
    assert str(message.content).startswith("TOOL_CALL_LIMIT_REACHED: ")
    assert message.artifact == []
    assert len(library.recalls) == 1
    assert ctx.peek_rag_trace() == trace


@pytest.mark.parametrize(("documents", "reason"), [(True, "nothing in the documents"), (False, "no documents yet")])
async def test_nothing_found(documents, reason):
    ctx = context()
    message = await call(build(MemoryLibrary(documents=documents)), ctx, query="x")
    assert str(message.content).startswith("NO_KNOWLEDGE: ")
    assert reason in str(message.content)
    assert message.artifact == []
    stored = ctx.take_rag_trace()
    assert stored is not None
    assert stored.rag_trace is not None
    assert stored.rag_trace["route"] == "no_knowledge"
    assert stored.rag_trace["retrieval_empty"] is True


async def test_query_of_the_model_is_cleaned_and_bounded():
    library = MemoryLibrary(FOUND)
    tool = build(library)
    await call(tool, context(), query="a\x00\ud800" + "b" * 5_000)
    await call(tool, context(), query="a" * 5_000 + "b" * 50_000)
    assert library.recalls[0][1] == "a\ufffd" + "b" * 5_000
    assert len(library.recalls[1][1]) <= 8_000
    assert library.recalls[1][1].endswith("bb")


def test_the_model_sees_one_argument():
    described = convert_to_openai_tool(build(MemoryLibrary()))["function"]
    assert described["name"] == "search_knowledge_base"
    assert list(described["parameters"]["properties"]) == ["query"]
    assert described["parameters"]["required"] == ["query"]
