"""Upkeep in the background that one failure does not end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sqlalchemy.exc import DBAPIError

from backend.errors import AppError
from backend.log import get_logger

_log = get_logger(__name__)


async def every(seconds: float, work: Callable[[], Awaitable[None]], *, wake: asyncio.Event | None = None) -> None:
    """Do ``work`` again and again, ``seconds`` apart, until cancelled; at once when ``wake`` is set, which is cleared.

    PostgreSQL being away is waited out, and one refused statement ends nothing.
    """
    while True:
        await _pause(seconds, wake)
        try:
            await work()
        except AppError as error:
            _log.warning("upkeep_failed", work=work.__name__, code=error.code)
        except DBAPIError:
            _log.exception("statement_failed", work=work.__name__)


async def _pause(seconds: float, wake: asyncio.Event | None) -> None:
    if wake is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()
    wake.clear()
