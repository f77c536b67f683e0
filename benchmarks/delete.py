"""Documents deleted: all at once as jobs, and as many one after the other, each waited for, in the same run.

Timed to two ends: when the last one answers no more (its deletion was accepted), and when nothing of any is left.
"""

import argparse
import asyncio
import time

import httpx

from benchmarks.harness import citewire, report

PARALLEL, BATCH, POLL_SECONDS, GIVE_UP_SECONDS = 16, 200, 0.5, 7_200.0
ONE_BY_ONE = 200
"""More are not needed to know the rate."""


async def fill(http: httpx.AsyncClient, prefix: str, count: int) -> list[str]:
    """That many documents of one sentence, ready; their names."""
    names = [f"{prefix}{number}.md" for number in range(count)]
    for start in range(0, count, BATCH):
        part = names[start : start + BATCH]
        files = [("file", (name, f"The pump {name} delivers forty litres.".encode())) for name in part]
        answer = (await http.post("/documents/batch", files=files)).raise_for_status().json()
        if answer["refused"]:
            raise RuntimeError(f"refused: {answer['files']}")
        await jobs_ended(http, "upload", [one["job_id"] for one in answer["files"]])
    return names


async def jobs_ended(http: httpx.AsyncClient, kind: str, job_ids: list[str]) -> None:
    """Returns when each has ended well, in whatever order."""
    async with asyncio.timeout(GIVE_UP_SECONDS):
        for job_id in reversed(job_ids):
            while (status := (await http.get(f"/documents/{kind}/jobs/{job_id}")).json()["status"]) != "completed":
                if status == "failed":
                    raise RuntimeError(f"job {job_id} failed")
                await asyncio.sleep(POLL_SECONDS)


async def together(http: httpx.AsyncClient, names: list[str]) -> tuple[float, float]:
    """Seconds until all are accepted, and until nothing is left."""
    gate = asyncio.Semaphore(PARALLEL)

    async def one(name: str) -> str:
        async with gate:
            return (await http.delete(f"/documents/delete/async/{name}")).raise_for_status().json()["job_id"]

    start = time.perf_counter()
    job_ids = await asyncio.gather(*(one(name) for name in names))
    accepted = time.perf_counter() - start
    await jobs_ended(http, "delete", job_ids)
    return accepted, time.perf_counter() - start


async def one_by_one(http: httpx.AsyncClient, names: list[str]) -> float:
    """Seconds for all, each waited for."""
    start = time.perf_counter()
    for name in names:
        (await http.delete(f"/documents/{name}")).raise_for_status()
    return time.perf_counter() - start


async def main(documents: int) -> None:
    """One by one first, then together; rates compare."""
    few = min(documents, ONE_BY_ONE)
    async with (
        citewire(None, MAX_BYTES_PER_USER=str(2**40)) as target,
        httpx.AsyncClient(base_url=target.url, headers=target.headers, timeout=600) as http,
    ):
        alone = await one_by_one(http, await fill(http, "one", few))
        accepted, gone = await together(http, await fill(http, "many", documents))
        left = (await http.get("/documents")).json()["documents"]
    report(
        "delete",
        "nothing is left, no document answers once its deletion was accepted",
        documents=documents,
        left=len(left),
        accepted_seconds=round(accepted, 2),
        gone_seconds=round(gone, 2),
        documents_a_second={"together": round(documents / gone, 1), "one_by_one": round(few / alone, 1)},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=10_000)
    asyncio.run(main(parser.parse_args().n))
