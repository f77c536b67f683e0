"""Waiting for what happens elsewhere."""

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Collection
from typing import Any


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


async def ended(tasks: Collection[asyncio.Task[Any]], seconds: float = 30.0) -> None:
    """Return when tasks that were cancelled have ended, whatever they raised. Raises ``TimeoutError`` that names those
    which go on."""
    if not tasks:
        return
    done, left = await asyncio.wait(tasks, timeout=seconds)
    for task in done:
        if not task.cancelled():
            task.exception()  # retrieved
    if left:
        raise TimeoutError(f"cancelled, and not ended within {seconds} s: {[task.get_coro() for task in left]}")
