"""200 turns at once: none fails, and the first ``content`` does not come much later than from the minimal server.

They are asked by as many accounts as may ask so many by default; the turns of one account are claimed one after
another.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.harness import (
    Target,
    Turn,
    ask,
    citewire,
    client,
    figures,
    minimal_server,
    model_server,
    register,
    report,
)

TURNS, ROUNDS = 200, 3
RUNS_PER_USER = 4
"""The default of ``MAX_RUNS_PER_USER``."""


async def accounts(target: Target) -> list[Target]:
    """The server as its accounts see it."""
    tokens = [await register(target.url) for _ in range(TURNS // RUNS_PER_USER)]
    return [replace(target, headers={"Authorization": f"Bearer {token}"}) for token in tokens]


async def burst(targets: Sequence[Target], label: str) -> list[Turn]:
    """All turns at once; raises when one fails."""
    async with client(TURNS) as http:
        asked = (ask(http, targets[n % len(targets)], f"{label}-{n}") for n in range(TURNS))
        return await asyncio.gather(*asked)


async def main() -> None:
    """Rounds alternate."""
    async with (
        model_server(tokens=50, delay=0.02) as model,
        minimal_server(model) as minimal,
        citewire(model) as ours,
    ):
        users = await accounts(ours)
        turns: dict[str, list[Turn]] = {"minimal": [], "citewire": []}
        for number in range(ROUNDS):
            for targets in ([minimal], users):
                turns[targets[0].name] += await burst(targets, f"round{number}")
    first = {name: figures([turn.first_content for turn in found]) for name, found in turns.items()}
    report(
        "burst",
        "none fails; p99 of the first content within 1.5 times that of the minimal server",
        ratio_p99=round(first["citewire"]["p99"] / first["minimal"]["p99"], 2),
        first_content_seconds=first,
        total_seconds={name: figures([turn.total for turn in found]) for name, found in turns.items()},
        failed=0,
        turns_at_once=TURNS,
        accounts=len(users),
        rounds=ROUNDS,
    )


if __name__ == "__main__":
    asyncio.run(main())
