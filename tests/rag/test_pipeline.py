from dataclasses import replace
from uuid import uuid4

import pytest

from backend.rag.config import RagConfig
from backend.rag.pipeline import RagResult
from backend.schemas.chat import normalize_rag_trace
from tests.rag.library import MemoryLibrary, identify, leaf, pipeline

USER = uuid4()
SECTION = leaf("section a", level=2, page_number=1, text="A whole section.")


def found() -> list:
    return [
        leaf("b1", page_number=9, heading="Beta"),
        leaf("a1", parent="section a", page_number=2),
        leaf("a2", parent="section a", page_number=3),
        leaf("c1", page_number=None, filename="notes.txt"),
    ]


class Steps:
    """Collects what is emitted."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(self, icon: str, label: str, detail: str = "", *, group=None, group_label=None) -> None:
        self.seen.append((label, detail))


async def run(library: MemoryLibrary, steps: Steps | None = None, language="en", **settings) -> RagResult:
    made = pipeline(library, RagConfig(**settings))
    return await made.run("the {0} question", USER, language, steps or Steps())


async def test_trace_tells_what_each_stage_did():
    library = MemoryLibrary(found(), [SECTION])
    result = await run(library, retrieval_top_k=2)
    assert library.recalls == [(USER, "the {0} question", 6, 3)]
    evidence = result.trace.pop("retrieved_chunks")
    initial = result.trace.pop("initial_retrieved_chunks")
    assert result.trace == {
        "query": "the {0} question",
        "retrieval_stage": "initial",
        "complexity": "simple",
        "complexity_reason": "not planned: no_rule",
        "sub_questions": [],
        "retrieval_mode": "hybrid",
        "retrieval_pipeline": "recall_merge",
        "candidate_k": 6,
        "candidate_k_source": "multiplier",
        "retrieval_candidate_multiplier": 3,
        "retrieval_top_k": 2,
        "leaf_retrieve_level": 3,
        "recall_count": 4,
        "auto_merge_enabled": True,
        "auto_merge_applied": True,
        "auto_merge_threshold": 2,
        "auto_merge_replaced_chunks": 2,
        "auto_merge_steps": 1,
        "post_merge_candidate_count": 3,
        "rerank_enabled": False,
        "rerank_applied": False,
        "candidate_count": 3,
        "post_rerank_count": 2,
        "post_threshold_count": 2,
        "evidence_reason": "not graded: no_rule",
        "retrieval_empty": False,
        "route": "answer",
        "retrieval_status": "partial",
    }
    assert [item["chunk_id"] for item in initial] == [str(identify(name)) for name in ("b1", "a1", "a2", "c1")]
    assert not any("text" in item for item in initial)
    assert evidence == [
        {
            "filename": "manual.pdf",
            "page_number": 9,
            "text": "b1",
            "score": 1 / 61,
            "rrf_rank": 1,
            "chunk_id": str(identify("b1")),
            "document_id": str(identify("document")),
            "document_version": 1,
            "heading": "Beta",
        },
        {
            "filename": "manual.pdf",
            "page_number": 2,
            "text": "A whole section.",
            "score": 1 / 62,
            "rrf_rank": 2,
            "chunk_id": str(identify("section a")),
            "document_id": str(identify("document")),
            "document_version": 1,
        },
    ]
    assert [chunk.text for chunk in result.chunks] == ["b1", "A whole section."]


async def test_every_trace_field_survives_normalization():
    result = await run(MemoryLibrary(found(), [SECTION]), retrieval_candidate_k=3)
    assert "candidate_k_config_error" in result.trace
    assert normalize_rag_trace(result.trace) == result.trace


async def test_merging_can_be_turned_off():
    result = await run(MemoryLibrary(found(), [SECTION]), auto_merge_enabled=False)
    assert [chunk.text for chunk in result.chunks] == ["b1", "a1", "a2", "c1"]
    assert result.trace["retrieval_pipeline"] == "recall"
    assert (result.trace["auto_merge_enabled"], result.trace["auto_merge_applied"]) == (False, False)
    assert result.trace["auto_merge_steps"] == 0


@pytest.mark.parametrize("documents", [True, False])
async def test_nothing_found(documents):
    steps = Steps()
    result = await run(MemoryLibrary(documents=documents), steps)
    assert (result.chunks, result.has_documents) == ([], documents)
    trace = result.trace
    assert (trace["retrieval_empty"], trace["route"], trace["retrieval_status"]) == (
        True,
        "no_knowledge",
        "no_knowledge",
    )
    assert trace["retrieved_chunks"] == []
    last = "Nothing found in the documents" if documents else "There are no documents yet"
    assert [label for label, _ in steps.seen] == ["Searching the documents", "Passages recalled: 0", last]


async def test_steps_come_in_order_and_in_the_language_of_the_turn():
    steps = Steps()
    await run(MemoryLibrary(found(), [SECTION]), steps, language="zh")
    assert steps.seen == [
        ("正在检索文档", "the {0} question"),
        ("召回片段：4", "hybrid"),
        ("合并到上级段落的片段：2", ""),
        ("选用片段：3", "manual.pdf, notes.txt"),
    ]


async def test_a_storage_error_passes_through():
    class Broken(MemoryLibrary):
        async def recall(self, *args, **kwargs):
            raise ConnectionError

    with pytest.raises(ConnectionError):
        await run(Broken())


@pytest.mark.parametrize("mode", ["dense", "sparse"])
async def test_the_trace_says_which_arm_answered_alone(mode):
    class OneArm(MemoryLibrary):
        async def recall(self, *args, **kwargs):
            return replace(await super().recall(*args, **kwargs), mode=mode)

    steps = Steps()
    result = await run(OneArm(found()), steps)
    assert result.trace["retrieval_mode"] == mode
    assert ("Passages recalled: 4", mode) in steps.seen
