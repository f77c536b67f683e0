"""What the modules share that run one application each (their fixture ``shared``)."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.acceptance.running import Running
from tests.support.chat_client import Client


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Running) -> AsyncIterator[Running]:
    """The module's application, emptied."""
    await shared.reset()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Running) -> AsyncIterator[Client]:
    """Its first account, an admin."""
    async with at.user() as client:
        yield client
