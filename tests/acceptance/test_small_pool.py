"""D04: streams hold no database connection, so two connections serve fifty of them."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import signed_in
from tests.support.fake_llm import text as says

STREAMS = 50
WORDS = "one two three four five six seven eight nine ten "


@pytest_asyncio.fixture
async def at(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    # Reading the table costs connections; memory would be the easier case.
    env = {"DATABASE_POOL_SIZE": "2", "EVENT_MEMORY_LOG": "false"}
    async with rack(postgres_url, valkey_url, f"pool_{worker_id}", env) as made:
        yield made


async def connections(url: URL) -> int:
    """How many the server has open."""
    engine = create_async_engine(url, poolclass=NullPool)
    query = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'citewire'"
    async with engine.connect() as connection:
        count = (await connection.execute(text(query))).scalar_one()
    await engine.dispose()
    return count


async def test_d04_fifty_streams_on_two_connections(at: Rack):
    at.llm.default = says(WORDS, delay=0.4)
    async with at.user() as alice, signed_in(at.server.url, token=None) as bob:
        streaming = [asyncio.create_task(alice.ask(session_id=f"s{number}")) for number in range(STREAMS)]
        await at.llm.wait_for_chats(STREAMS)
        meanwhile = 0
        while not all(task.done() for task in streaming):
            for client in (alice, bob):
                assert (await client.get("/sessions")).status_code == 200
            assert (await bob.get("/health/ready")).status_code == 200
            assert await connections(at.database) <= 2
            meanwhile += 1
            await asyncio.sleep(0.2)
        seen = await asyncio.gather(*streaming)
    assert meanwhile >= 3
    assert {stream.text for stream in seen} == {WORDS}
    assert {stream.one("done")["status"] for stream in seen} == {"completed"}
    await at.check(*seen, turns=STREAMS)
