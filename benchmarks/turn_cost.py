"""CPU of a turn, and tokens per CPU second, against the minimal server, at 200 tokens."""

import asyncio
import statistics

from benchmarks.harness import Target, ask, citewire, client, figures, minimal_server, model_server, report

TOKENS, TURNS, ROUNDS = 200, 30, 5


async def cpu_of_turns(target: Target, label: str) -> float:
    """CPU seconds of the server for one turn, the mean of ``TURNS``."""
    async with client() as http:
        await ask(http, target, f"{label}-warm")
        before = target.cpu_seconds()
        for number in range(TURNS):
            turn = await ask(http, target, f"{label}-{number}")
            assert turn.pieces == TOKENS, turn
    return (target.cpu_seconds() - before) / TURNS


async def main() -> None:
    """Rounds alternate, so that what else the machine does hits both."""
    async with (
        model_server(tokens=TOKENS) as model,
        minimal_server(model) as minimal,
        citewire(model) as ours,
    ):
        cpu: dict[str, list[float]] = {"minimal": [], "citewire": []}
        for number in range(ROUNDS):
            for target in (minimal, ours):
                cpu[target.name].append(await cpu_of_turns(target, f"round{number}"))
    ratio = statistics.median(cpu["citewire"]) / statistics.median(cpu["minimal"])
    report(
        "turn_cost",
        "at most 1.5 times the CPU of the minimal server",
        ratio=round(ratio, 2),
        cpu_ms_per_turn={name: figures([value * 1000 for value in values], 1) for name, values in cpu.items()},
        tokens_per_cpu_second={name: round(TOKENS / statistics.median(values)) for name, values in cpu.items()},
        turns=TURNS * ROUNDS,
        tokens=TOKENS,
    )


if __name__ == "__main__":
    asyncio.run(main())
