"""FakeLLM as a process that answers every question with the same number of tokens, without calling tools."""

import argparse
import asyncio

from tests.support.fake_llm import FakeLLM, text


async def main(tokens: int, delay: float) -> None:
    """Serve until killed."""
    words = [f"word{number} " for number in range(tokens)]
    async with FakeLLM(default=text("".join(words), tokens=words, delay=delay)) as fake:
        print(fake.base_url, flush=True)
        while True:
            await asyncio.sleep(1)
            fake.requests.clear()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--delay", type=float, default=0.0)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.tokens, arguments.delay))
