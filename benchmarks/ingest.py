"""Pages a second of a made PDF and of many Markdown files, and what ingest costs streams that are read meanwhile.

Twenty streams of ten tokens a second are read twice in the same run, without ingest and with it, and as many of the
provider itself. The seconds of each stage are those for which the oldest job that had not ended was seen in it.
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import httpx
from fpdf import FPDF

from benchmarks.harness import Target, citewire, figures, model_server, report
from benchmarks.paced import Paced, read_all

STREAMS, TOKENS, DELAY, BATCH, LOOK_SECONDS = 20, 150, 0.1, 200, 0.1
Files = list[tuple[str, bytes]]


def pdf(pages: int) -> bytes:
    """A PDF of that many pages of some hundred words each."""
    made = FPDF()
    made.set_font("Helvetica", size=10)
    for page in range(pages):
        made.add_page()
        made.multi_cell(0, 5, " ".join(f"Pump {page}-{n} of station {n % 7} delivers {n} litres." for n in range(30)))
    return bytes(made.output())


def notes(count: int) -> Files:
    """Markdown files of one leaf or two."""
    line = "The pump {n} of the northern station delivers forty litres a second, as the plan says. "
    return [(f"note{n}.md", f"# Note {n}\n\n{line.format(n=n) * (4 + n % 2 * 8)}".encode()) for n in range(count)]


def batches(files: Files) -> Iterator[Files]:
    """As many as one request takes."""
    for start in range(0, len(files), BATCH):
        yield files[start : start + BATCH]


async def ingested(http: httpx.AsyncClient, files: Files) -> tuple[float, dict[str, float]]:
    """Seconds until all are ready, and of these the seconds in each stage of the oldest job."""
    start = time.perf_counter()
    waiting: list[str] = []
    for some in batches(files):
        answer = (await http.post("/documents/batch", files=[("file", one) for one in some])).raise_for_status().json()
        if answer["refused"]:
            raise RuntimeError(f"refused: {answer['files']}")
        waiting += [one["job_id"] for one in answer["files"]]
    seen: Counter[str] = Counter()
    while waiting:
        job = (await http.get(f"/documents/upload/jobs/{waiting[0]}")).json()
        if job["status"] == "failed":
            raise RuntimeError(f"{job['filename']}: {job['code']}")
        if job["status"] == "completed":
            waiting.pop(0)
            continue
        seen[job["current_step"]] += 1
        await asyncio.sleep(LOOK_SECONDS)
    return time.perf_counter() - start, {step: round(looks * LOOK_SECONDS, 1) for step, looks in seen.items()}


async def gaps(target: Target, label: str) -> list[float]:
    """Milliseconds between the tokens of all streams."""
    streams = [Paced.of(target, f"{label}-{number}") for number in range(STREAMS)]
    await read_all(target.url, streams, 1.0)
    failed = [stream.failed for stream in streams if stream.failed or len(stream.seen) != TOKENS]
    if failed:
        raise RuntimeError(f"{len(failed)} streams failed: {failed[0]}")
    return [gap * 1000 for stream in streams for gap in stream.gaps]


async def provider(model: str) -> list[float]:
    """The same of the provider itself."""
    streams = [Paced.of_model(model) for _ in range(STREAMS)]
    await read_all(model, streams, 1.0)
    return [gap * 1000 for stream in streams for gap in stream.gaps]


async def main(pages: int, files: int) -> None:
    """Quiet, PDF, Markdown; then streams while another PDF comes in."""
    async with (
        model_server(tokens=TOKENS, delay=DELAY) as model,
        citewire(model) as target,
        httpx.AsyncClient(base_url=target.url, headers=target.headers, timeout=3_600) as http,
    ):
        await gaps(target, "warm")
        found = {"provider": await provider(model), "without_ingest": await gaps(target, "quiet")}
        pdf_seconds, pdf_stages = await ingested(http, [("plan.pdf", pdf(pages))])
        note_seconds, note_stages = await ingested(http, notes(files))
        ingest = asyncio.create_task(ingested(http, [("other.pdf", pdf(pages + 1))]))
        found["with_ingest"] = await gaps(target, "busy")
        covered = not ingest.done()
        await ingest
    milliseconds = {name: figures(values, 1) for name, values in found.items()}
    report(
        "ingest",
        "greatest gap of 20 streams below 250 ms beyond the provider's",
        pdf={"pages": pages, "pages_a_second": round(pages / pdf_seconds, 1), "stage_seconds": pdf_stages},
        markdown={"files": files, "files_a_second": round(files / note_seconds, 1), "stage_seconds": note_stages},
        gap_ms=milliseconds,
        max_gap_beyond_provider_ms={
            name: round(milliseconds[name]["max"] - milliseconds["provider"]["max"], 1)
            for name in ("without_ingest", "with_ingest")
        },
        ingest_outlasted_the_streams=covered,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=300, help="pages of the PDF")
    parser.add_argument("--files", type=int, default=2_000)
    options = parser.parse_args()
    asyncio.run(main(options.n, options.files))
