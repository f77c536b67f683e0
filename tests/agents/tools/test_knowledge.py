import pytest
from langchain_core.utils.function_calling import convert_to_openai_tool

from backend.agents.tools.knowledge import build_knowledge_tool
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
    await call(build(library), context(), query="a\x00\ud800" + "b" * 5000)
    assert library.recalls[0][1] == "a\ufffd" + "b" * 1998


def test_the_model_sees_one_argument():
    described = convert_to_openai_tool(build(MemoryLibrary()))["function"]
    assert described["name"] == "search_knowledge_base"
    assert list(described["parameters"]["properties"]) == ["query"]
    assert described["parameters"]["required"] == ["query"]
