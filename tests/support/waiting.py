"""Waiting for what happens elsewhere."""

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable


async def until(holds: Callable[[], object | Awaitable[object]], seconds: float = 60.0) -> None:
    """Return when ``holds()`` is true. Raises ``TimeoutError`` that names it."""
    try:
        async with asyncio.timeout(seconds):
            for _ in itertools.count():
                answer = holds()
                if await answer if inspect.isawaitable(answer) else answer:
                    return
                await asyncio.sleep(0.05)
    except TimeoutError as error:
        raise TimeoutError(f"not within {seconds} s: {inspect.getsource(holds).strip()}") from error
