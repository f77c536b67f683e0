"""From a plain question to the first ``content`` without a model provider, over a library of 240 passages.

With ``--data DIR`` passages and questions are those of the directory; else they are made.
"""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness import Target, ask, citewire, client, figures, report
from benchmarks.quality import PASSAGES, QUESTIONS, lines_of

LIBRARY, TURNS, WARM_UP, UPLOADS = 240, 100, 10, 4
UPLOAD_SECONDS = 600.0


def made() -> tuple[list[str], list[str]]:
    """Passages of some hundred tokens, and a question to each."""
    numbers = range(1, LIBRARY + 1)
    passages = [
        f"Pump {n} stands in hall {n % 17} of the northern waterworks and was built in {1900 + n % 90}. "
        f"It delivers {n * 7 + 100} litres an hour at a pressure of {n % 9 + 2} bar. "
        f"Its gasket is changed every {n % 11 + 2} months by the crew of section {n % 5}, who keep the record "
        f"in cabinet {n}. Before it is opened, valve {n + 1000} has to be closed and the pressure let off. "
        "Spare parts lie in the store on the ground floor, next to the gate, and are counted each spring."
        for n in numbers
    ]
    return passages, [f"How many litres an hour does pump {n} deliver?" for n in numbers]


def read(data: Path, language: str | None) -> tuple[list[str], list[str]]:
    """The first ``LIBRARY`` passages of a language, and the questions to them."""
    passages = [item for item in lines_of(data / PASSAGES) if language in (None, item.get("lang"))][:LIBRARY]
    known = {item["id"] for item in passages}
    questions = [item["question"] for item in lines_of(data / QUESTIONS) if item.get("passage_id") in known]
    step = max(1, len(questions) // (TURNS + WARM_UP))
    return [item["text"] for item in passages], questions[::step]


async def fill(http: httpx.AsyncClient, target: Target, passages: Sequence[str]) -> None:
    """Uploads the passages, each a document. Raises ``HTTPStatusError``."""
    slots = asyncio.Semaphore(UPLOADS)

    async def upload(number: int, text: str) -> None:
        async with slots:
            files = {"file": (f"{number:06}.txt", text.encode())}
            answer = await http.post(
                f"{target.url}/documents/upload", files=files, headers=target.headers, timeout=UPLOAD_SECONDS
            )
            answer.raise_for_status()

    await asyncio.gather(*(upload(number, text) for number, text in enumerate(passages)))


async def measure(passages: Sequence[str], questions: Sequence[str]) -> dict[str, Any]:
    """Milliseconds to the first ``content`` and to the end, each question in a session of its own."""
    first: list[float] = []
    total: list[float] = []
    async with citewire(None, CHAT_RATE_PER_MINUTE="0") as target, client(UPLOADS) as http:
        await fill(http, target, passages)
        for number in range(WARM_UP + TURNS):
            turn = await ask(http, target, f"s{number}", questions[number % len(questions)])
            if number >= WARM_UP:
                first.append(turn.first_content * 1000)
                total.append(turn.total * 1000)
    return {"first_content_ms": figures(first, 1), "total_ms": figures(total, 1), "passages": len(passages)}


async def main() -> None:
    """One library, or one for each language of the data."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    data: Path | None = parser.parse_args().data
    if data is None:
        found = {"made": await measure(*made())}
    else:
        languages = sorted({item.get("lang") for item in lines_of(data / PASSAGES)}, key=str)
        found = {str(language): await measure(*read(data, language)) for language in languages}
    report("first_answer", f"100 ms to the first content, median, at {LIBRARY} passages", turns=TURNS, **found)


if __name__ == "__main__":
    asyncio.run(main())
