"""300 streams of ten tokens a second at once on one worker: errors, gaps beyond the provider's own, memory a stream."""

import asyncio

from benchmarks.harness import Target, citewire, figures, minimal_server, model_server, report
from benchmarks.paced import Paced, read_all

STREAMS, WARM, TOKENS, DELAY, ROUNDS = 300, 50, 150, 0.1, 2
SPREAD_SECONDS = 3.0
"""Over which the streams begin, as people do; what a burst costs is another figure."""


async def read(target: Target, count: int, label: str) -> tuple[list[Paced], float]:
    """That many streams read to their ends, and the most memory that the server had meanwhile, in bytes."""
    streams = [Paced.of(target, f"{label}-{number}") for number in range(count)]
    most = float(target.resident_bytes())
    reading = asyncio.create_task(read_all(target.url, streams, SPREAD_SECONDS))
    while not reading.done():
        await asyncio.wait([reading], timeout=0.25)
        most = max(most, float(target.resident_bytes()))
    await reading
    return streams, most


async def provider(model: str) -> list[float]:
    """The gaps of as many streams of the provider itself."""
    streams = [Paced.of_model(model) for _ in range(STREAMS)]
    await read_all(model, streams, SPREAD_SECONDS)
    return [gap for stream in streams for gap in stream.gaps]


async def main() -> None:
    """Rounds alternate; the first streams, which make what is made once, count for nothing."""
    async with (
        model_server(tokens=TOKENS, delay=DELAY) as model,
        minimal_server(model) as minimal,
        citewire(model) as ours,
    ):
        gaps: dict[str, list[float]] = {"provider": await provider(model), "minimal": [], "citewire": []}
        errors = {"minimal": 0, "citewire": 0}
        kilobytes: dict[str, float] = {}
        for target in (minimal, ours):
            await read(target, WARM, "warm")
        for number in range(ROUNDS):
            for target in (minimal, ours):
                before = target.resident_bytes()
                streams, most = await read(target, STREAMS, f"round{number}")
                kilobytes.setdefault(target.name, round((most - before) / STREAMS / 1024, 1))
                errors[target.name] += sum(1 for stream in streams if stream.failed or len(stream.seen) != TOKENS)
                gaps[target.name] += [gap for stream in streams for gap in stream.gaps]
            gaps["provider"] += await provider(model)
    milliseconds = {name: figures([gap * 1000 for gap in found], 1) for name, found in gaps.items()}
    report(
        "streams",
        "no error; p99 gap below 250 ms beyond the provider's; below 150 KB resident a stream",
        errors=errors["citewire"],
        p99_gap_beyond_provider_ms={
            name: round(milliseconds[name]["p99"] - milliseconds["provider"]["p99"], 1) for name in errors
        },
        resident_kilobytes_a_stream=kilobytes,
        gap_ms=milliseconds,
        errors_of_each=errors,
        streams=STREAMS,
        tokens_a_second=round(1 / DELAY),
        tokens=TOKENS,
        rounds=ROUNDS,
    )


if __name__ == "__main__":
    asyncio.run(main())
