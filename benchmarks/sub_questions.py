"""How much longer a question of four parts takes to look up than one of one part, where models plan and grade."""

import asyncio
import time
from contextlib import aclosing
from uuid import uuid4

from backend.infra.config import ModelConfig
from backend.infra.llm.openai import openai_model
from backend.rag.config import RagConfig
from backend.rag.pipeline import RetrievalPipeline
from benchmarks.harness import figures, report
from tests.rag.library import MemoryLibrary, leaf
from tests.support.fake_llm import FakeLLM, decided, wait

ROUNDS = 20
MODEL_SECONDS = 0.3
"""How long the provider takes for each decision."""

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


async def main() -> None:
    """The two in turn, so that what else the machine does hits both."""
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
        "four take at most 1.6 times one",
        times=round(sum(times[4]) / sum(times[1]), 2),
        one_ms=figures(times[1], 1),
        four_ms=figures(times[4], 1),
        model_seconds=MODEL_SECONDS,
        rounds=ROUNDS,
    )


if __name__ == "__main__":
    asyncio.run(main())
