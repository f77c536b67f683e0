"""What ``citewire trace`` prints of real retrievals, line for line: the pages are in ``traces/``."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from backend.cli.trace_tree import message_tree
from backend.rag.resume import HitlResume
from backend.schemas.chat import HitlResumeState
from tests.rag.library import MemoryLibrary, leaf
from tests.rag.running import QueryLibrary, ask
from tests.support.fake_llm import FakeLLM, decided

PAGES = Path(__file__).parent / "traces"
PUMP = leaf("pump", text="The warranty of the pump lasts 24 months.", filename="pump.pdf", page_number=17)
MIXER = leaf("mixer", text="The warranty of the mixer lasts 12 months.", filename="mixer.pdf", page_number=3)
STORKS = leaf("storks", text="Storks nest on chimneys.", filename="birds.pdf", page_number=1)
GOOD = decided(relevance="strong", answerability="sufficient", ambiguity="none", route="answer", confidence=0.9)
OFF = decided(
    relevance="none", answerability="none", ambiguity="none", route="no_knowledge", confidence=0.8, reason="birds"
)


def page(trace: dict[str, Any], **fields: Any) -> str:
    message = {"id": "m", "status": "completed", "timestamp": "2026-01-01T00:00:00Z", "rag_trace": trace, **fields}
    text = StringIO()
    Console(file=text, width=1000, highlight=False, markup=False, emoji=False).print(message_tree(message, 1.25, []))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


async def simple(llm: FakeLLM) -> dict[str, Any]:
    llm.decide("grade", GOOD)
    return (await ask(llm, MemoryLibrary([PUMP, STORKS, MIXER]), retrieval_top_k=2)).trace


async def complex_(llm: FakeLLM) -> dict[str, Any]:
    parts = ["How long is the warranty of the pump?", "How long is the warranty of the mixer?"]
    llm.decide("plan", decided(complexity="complex", reason="two machines", sub_questions=parts))
    llm.decide("grade", GOOD, GOOD)
    found = QueryLibrary(by_query={parts[0]: [PUMP, STORKS], parts[1]: [MIXER, STORKS]})
    return (await ask(llm, found, "Compare the warranty of the pump and the mixer")).trace


async def rewritten(llm: FakeLLM) -> dict[str, Any]:
    weak = decided(
        relevance="weak", answerability="none", ambiguity="none", route="rewrite", confidence=0.3, reason="off"
    )
    llm.decide("grade", weak, GOOD)
    llm.decide("rewrite", decided(method="step_back", text="What does the guarantee of the pump cover?"))
    found = QueryLibrary([STORKS], by_query={"What does the guarantee of the pump cover?": [PUMP]})
    return (await ask(llm, found)).trace


async def clarified(llm: FakeLLM) -> dict[str, Any]:
    fields = {
        "missing_slots": ["machine"],
        "prompt": "Which machine?",
        "options": ["pump", "mixer"],
        "reason": "two fit",
    }
    unclear = decided(
        relevance="strong", answerability="partial", ambiguity="missing_slot", route="clarify", confidence=0.6, **fields
    )
    llm.decide("grade", unclear)
    return (await ask(llm, MemoryLibrary([PUMP, MIXER]))).trace


async def resumed(llm: FakeLLM) -> dict[str, Any]:
    llm.decide("grade", GOOD)
    state = HitlResumeState(question="How long?", route="clarify", retrieval_status="needs_clarification")
    resume = HitlResume("How long is the warranty?", ["pump"], state)
    return (await ask(llm, MemoryLibrary([PUMP, MIXER]), "How long is the warranty? pump", resume=resume)).trace


async def no_knowledge(llm: FakeLLM) -> dict[str, Any]:
    llm.decide("grade", OFF)
    return (await ask(llm, MemoryLibrary([STORKS]))).trace


async def empty(llm: FakeLLM) -> dict[str, Any]:
    return (await ask(llm, MemoryLibrary([]))).trace


@pytest.mark.parametrize("made", [simple, complex_, rewritten, clarified, resumed, no_knowledge, empty])
async def test_a_trace_is_printed_as_its_page_shows(made: Any):
    async with FakeLLM() as llm:
        trace = await made(llm)
    assert page(trace) == (PAGES / f"{made.__name__.rstrip('_')}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("trace", "stage"),
    [
        ({"recall_count": 0}, "recall: no passage matches the question"),
        (
            {"recall_count": 3, "candidate_count": 3, "post_rerank_count": 3, "post_threshold_count": 0},
            "rerank: every passage is below the score floor",
        ),
        ({"recall_count": 3, "evidence_relevance": "none"}, "grade: the passages are about something else"),
        ({"recall_count": 3, "evidence_relevance": "weak"}, "grade: the passages do not answer the question"),
        ({"recall_count": 0, "sub_traces": [{"recall_count": 0, "route": "no_knowledge"}]}, "every part"),
    ],
)
def test_it_says_which_stage_starved(trace: dict[str, Any], stage: str):
    assert f"starved at {stage}\n" in page({"route": "no_knowledge", **trace})


def test_passages_that_had_no_room_in_the_prompt_are_told():
    kept = [{"filename": "a.pdf"}] * 3
    assert "dropped 5 · no room in the prompt\n" in page(
        {"route": "answer", "post_threshold_count": 8, "retrieved_chunks": kept}
    )
