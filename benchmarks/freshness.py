"""Time from an upload job's ``completed`` to the first answer that cites the document.

Compared in one run: the answer about a document that has just come, and the answer about one that was there before.
"""

import argparse
import asyncio
import time

import httpx

from benchmarks.harness import Target, citewire, figures, report

POLL_SECONDS, GIVE_UP_SECONDS = 0.02, 60.0


async def added(http: httpx.AsyncClient, word: str) -> float:
    """The time at which the job of a document with that word was seen ``completed``."""
    file = (f"{word}.md", f"The {word} of the northern station delivers forty litres.".encode())
    job_id = (await http.post("/documents/upload/async", files={"file": file})).raise_for_status().json()["job_id"]
    async with asyncio.timeout(GIVE_UP_SECONDS):
        while True:
            job = (await http.get(f"/documents/upload/jobs/{job_id}")).json()
            if job["status"] == "completed":
                return time.perf_counter()
            if job["status"] == "failed":
                raise RuntimeError(f"the upload failed: {job['code']}")
            await asyncio.sleep(POLL_SECONDS)


async def found(http: httpx.AsyncClient, word: str, session: str) -> int:
    """Questions asked until an answer cited the document of that word."""
    async with asyncio.timeout(GIVE_UP_SECONDS):
        for asked in range(1, 1_000):
            body = {"message": f"What does the {word} deliver?", "session_id": f"{session}-{asked}"}
            answer = (await http.post("/chat", json=body)).raise_for_status().json()
            if any(one["filename"] == f"{word}.md" for one in answer["citations"]):
                return asked
    raise RuntimeError(f"{word} was never found")


async def measure(target: Target, documents: int) -> tuple[dict[str, list[float]], list[int]]:
    """Milliseconds from completion to the answer of a new document, and of the question about the old one; how often
    the new one was asked for."""
    times: dict[str, list[float]] = {"new": [], "known": []}
    tries: list[int] = []
    async with httpx.AsyncClient(base_url=target.url, headers=target.headers, timeout=60) as http:
        await added(http, "wordzero")
        await found(http, "wordzero", "warm")
        for number in range(documents):
            done = await added(http, f"word{number}x")
            tries.append(await found(http, f"word{number}x", f"new{number}"))
            times["new"].append((time.perf_counter() - done) * 1000)
            start = time.perf_counter()
            await found(http, "wordzero", f"known{number}")
            times["known"].append((time.perf_counter() - start) * 1000)
    return times, tries


async def main(documents: int) -> None:
    """Without a model provider: what answers is the search itself."""
    async with citewire(None, CHAT_RATE_PER_MINUTE="0") as target:
        times, tries = await measure(target, documents)
    report(
        "freshness",
        "the first question after `completed` finds the document",
        answer_ms={name: figures(values, 1) for name, values in times.items()},
        questions_until_found=figures([float(one) for one in tries], 0),
        documents=documents,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20)
    asyncio.run(main(parser.parse_args().n))
