"""How much longer a question of four parts takes than one of one part: to look up, where models plan and grade, and as
a whole turn without a provider, where all of it is work of this machine's cores."""

import asyncio
import time
from contextlib import aclosing
from typing import Any
from uuid import uuid4

from backend.infra.config import ModelConfig
from backend.infra.llm.openai import openai_model
from backend.rag.config import RagConfig
from backend.rag.pipeline import RetrievalPipeline
from benchmarks.first_answer import fill, made
from benchmarks.harness import ask, citewire, client, figures, report
from tests.rag.library import MemoryLibrary, leaf
from tests.support.fake_llm import FakeLLM, decided, wait

ROUNDS = 20
MODEL_SECONDS = 0.3
"""How long the provider takes for each decision."""

PASSAGES = 60
EXTRACTIVE_QUESTION = (
    "How many litres does pump 3 deliver, and how many litres does pump 9 deliver, "
    "and how many litres does pump 14 deliver, and how many litres does pump 21 deliver?"
)
QUESTION = "Compare the pump, the mixer, the fan and the heater"
PARTS = ["What is the pump?", "What is the mixer?", "What is the fan?", "What is the heater?"]
GRADE = wait(MODEL_SECONDS, decided(relevance="strong", answerability="sufficient", route="answer"))
PLANS = {
    1: wait(MODEL_SECONDS, decided(complexity="simple")),
    4: wait(MODEL_SECONDS, decided(complexity="complex", sub_questions=PARTS)),
}


async def timed(pipeline: RetrievalPipeline, llm: FakeLLM, parts: int) -> float:
    """Milliseconds of one retrieval of that many parts."""
    llm.decide("plan", PLANS[parts])
    llm.decide("grade", *[GRADE] * parts)
    start = time.perf_counter()
    result = await pipeline.run(QUESTION, uuid4(), "en", lambda *args, **more: None)
    assert result.trace.get("sub_agent_count", 1) == parts
    return (time.perf_counter() - start) * 1000


async def extractive() -> dict[str, Any]:
    """Milliseconds to the first ``content`` of whole turns, the two in turn; the first of each are to warm up."""
    asked = {1: "How many litres an hour does pump 5 deliver?", 4: EXTRACTIVE_QUESTION}
    times: dict[int, list[float]] = {1: [], 4: []}
    async with citewire(None, CHAT_RATE_PER_MINUTE="0") as target, client() as http:
        await fill(http, target, made()[0][:PASSAGES])
        for number in range(-2, ROUNDS):
            for parts, values in times.items():
                turn = await ask(http, target, f"s{parts}-{number}", asked[parts])
                if number >= 0:
                    values.append(turn.first_content * 1000)
    ratio = round(sum(times[4]) / sum(times[1]), 2)
    return {"times": ratio, "one_ms": figures(times[1], 1), "four_ms": figures(times[4], 1), "passages": PASSAGES}


async def main() -> None:
    """The two in turn, so that what else the machine does hits both."""
    without_provider = await extractive()
    async with FakeLLM() as llm:
        config = ModelConfig(llm_base_url=llm.base_url, llm_model="fake")
        async with aclosing(openai_model(config, model="fake", streaming=False)) as model:
            library = MemoryLibrary([leaf(f"passage {at}", text="The pump. " * 50) for at in range(24)])
            pipeline = RetrievalPipeline(library, RagConfig(), fast=model, grade=model)
            times: dict[int, list[float]] = {1: [], 4: []}
            for number in range(-2, ROUNDS):
                for parts, values in times.items():
                    taken = await timed(pipeline, llm, parts)
                    if number >= 0:
                        values.append(taken)
    report(
        "sub_questions",
        "four take at most 1.6 times one, where models decide",
        times=round(sum(times[4]) / sum(times[1]), 2),
        one_ms=figures(times[1], 1),
        four_ms=figures(times[4], 1),
        model_seconds=MODEL_SECONDS,
        rounds=ROUNDS,
        without_provider=without_provider,
    )


if __name__ == "__main__":
    asyncio.run(main())
