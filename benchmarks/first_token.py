"""How much later the first ``content`` comes than from the provider itself, in a plain turn."""

import asyncio
import time

import httpx

from benchmarks.harness import ask, citewire, client, figures, minimal_server, model_server, report

TURNS = 100
PAUSE_SECONDS = 0.03
"""Between two rounds, so that each question finds an idle server: nothing of the turn before is still to be done."""


async def provider_first_byte(http: httpx.AsyncClient, model: str) -> float:
    """Seconds to the first token when the provider is asked directly."""
    start = time.perf_counter()
    body = {"model": "scripted", "stream": True, "messages": [{"role": "user", "content": "Say something long."}]}
    async with http.stream("POST", f"{model}/chat/completions", json=body) as response:
        first = 0.0
        async for data in response.aiter_raw():
            if not first and b"word0" in data:
                first = time.perf_counter() - start
    return first


async def main() -> None:
    """The three are asked in turn, so that what else the machine does hits all."""
    async with (
        model_server(tokens=20) as model,
        minimal_server(model) as minimal,
        citewire(model) as ours,
        client() as direct,
        client() as to_minimal,
        client() as to_ours,
    ):
        times: dict[str, list[float]] = {"provider": [], "minimal": [], "citewire": []}
        for number in range(-5, TURNS):
            provider = await provider_first_byte(direct, model)
            first_minimal = (await ask(to_minimal, minimal, f"s{number}")).first_content
            first_ours = (await ask(to_ours, ours, f"s{number}")).first_content
            await asyncio.sleep(PAUSE_SECONDS)
            if number >= 0:
                times["provider"].append(provider)
                times["minimal"].append(first_minimal)
                times["citewire"].append(first_ours)
    over = [ours - provider for ours, provider in zip(times["citewire"], times["provider"], strict=True)]
    report(
        "first_token",
        "10 ms over the provider's own, median",
        over_provider_ms=figures([value * 1000 for value in over], 1),
        first_content_ms={name: figures([value * 1000 for value in values], 1) for name, values in times.items()},
        turns=TURNS,
    )


if __name__ == "__main__":
    asyncio.run(main())
