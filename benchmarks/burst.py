"""200 turns at once: none fails, and the first ``content`` does not come much later than from the minimal server."""

import asyncio

from benchmarks.harness import Target, Turn, ask, citewire, client, figures, minimal_server, model_server, report

TURNS, ROUNDS = 200, 3


async def burst(target: Target, label: str) -> list[Turn]:
    """All turns at once; raises when one fails."""
    async with client(TURNS) as http:
        return await asyncio.gather(*(ask(http, target, f"{label}-{number}") for number in range(TURNS)))


async def main() -> None:
    """Rounds alternate."""
    async with (
        model_server(tokens=50, delay=0.02) as model,
        minimal_server(model) as minimal,
        citewire(model) as ours,
    ):
        turns: dict[str, list[Turn]] = {"minimal": [], "citewire": []}
        for number in range(ROUNDS):
            for target in (minimal, ours):
                turns[target.name] += await burst(target, f"round{number}")
    first = {name: figures([turn.first_content for turn in found]) for name, found in turns.items()}
    report(
        "burst",
        "none fails; p99 of the first content within 1.5 times that of the minimal server",
        ratio_p99=round(first["citewire"]["p99"] / first["minimal"]["p99"], 2),
        first_content_seconds=first,
        total_seconds={name: figures([turn.total for turn in found]) for name, found in turns.items()},
        failed=0,
        turns_at_once=TURNS,
        rounds=ROUNDS,
    )


if __name__ == "__main__":
    asyncio.run(main())
