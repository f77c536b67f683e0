"""Whatever the zones of the process and of the database are: times are UTC, order is by place (D06)."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client

pytestmark = pytest.mark.asyncio(loop_scope="module")
MARGIN = timedelta(minutes=1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    async with rack(postgres_url, valkey_url, f"zones_{worker_id}", {"TZ": "Asia/Shanghai"}) as made:
        name = made.database.database
        await sql(made.database, f"alter database \"{name}\" set timezone to 'America/New_York'")
        await made.server.sigterm()
        await made.server.start()
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def alice(shared: Rack) -> AsyncIterator[Client]:
    await shared.reset()
    async with shared.user() as client:
        yield client


async def sql(url: URL, statement: str, **values: Any) -> list[Any]:
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.begin() as connection:
        result = await connection.execute(text(statement), values)
        rows = list(result.all()) if result.returns_rows else []
    await engine.dispose()
    return rows


def is_now(value: str, since: datetime) -> bool:
    """Whether the text is a moment between ``since`` and now, written in UTC with a ``Z``."""
    assert value.endswith("Z"), value
    moment = datetime.fromisoformat(value)
    return since - MARGIN <= moment <= datetime.now(UTC) + MARGIN


async def test_d06_the_zones_are_what_this_test_says(shared: Rack, alice: Client):
    assert await sql(shared.database, "show timezone") == [("America/New_York",)]
    assert shared.server.env["TZ"] == "Asia/Shanghai"


async def test_d06_every_time_of_the_api_is_utc(shared: Rack, alice: Client):
    since = datetime.now(UTC)
    form = {"files": {"file": ("pump.txt", b"The pump holds 24 bar.")}}
    assert (await alice.http.post("/documents/upload", **form)).status_code == 200
    seen = await alice.ask()
    run = await alice.run(seen.run_id)
    times = [
        *[message["timestamp"] for message in await alice.messages()],
        *[item["updated_at"] for item in (await alice.get("/sessions")).json()["sessions"]],
        *[item["uploaded_at"] for item in (await alice.get("/documents")).json()["documents"]],
        run["created_at"],
        run["finished_at"],
    ]
    for _ in range(2):  # the second time from the cache
        times += [message["timestamp"] for message in await alice.messages()]
        times += [item["updated_at"] for item in (await alice.get("/sessions")).json()["sessions"]]
    assert len(times) == 12
    assert all(is_now(value, since) for value in times), times
    assert run["created_at"] <= run["finished_at"]
    assert (await alice.get("/auth/me")).status_code == 200  # a token of now is valid now


async def test_d06_messages_keep_their_order_when_the_clock_does_not(shared: Rack, alice: Client):
    for number in range(3):
        await alice.ask(f"question {number}")
    await sql(
        shared.database,
        "update chat_messages set created_at = timestamptz '2026-11-01 06:30:00+00' - seq * interval '1 hour'",
    )
    await shared.flush_redis()
    await alice.ask("question 3")
    messages = await alice.messages()
    assert [item["content"] for item in messages if item["type"] == "human"] == [f"question {n}" for n in range(4)]
    assert [item["timestamp"] for item in messages[:2]] == ["2026-11-01T05:30:00Z", "2026-11-01T04:30:00Z"]
    asked = [item["content"] for item in shared.llm.chats[-1].messages if item["role"] == "user"]
    assert asked == [f"question {n}" for n in range(4)]


async def test_d06_sessions_around_a_change_of_the_clocks_are_listed_once_and_in_order(shared: Rack, alice: Client):
    """In New York 01:30 came twice on that day; 02:30 did not come in spring."""
    moments = [
        "2026-03-08T06:59:59Z",
        "2026-03-08T07:00:00Z",
        "2026-03-08T07:30:00Z",
        "2026-11-01T05:30:00Z",
        "2026-11-01T06:30:00Z",
        "2026-11-01T06:30:00.000001Z",
    ]
    for number, moment in enumerate(moments):
        await sql(
            shared.database,
            "insert into chat_sessions (user_id, session_id, updated_at) select id, :name, cast(cast(:at as text) as"
            " timestamptz) from users",
            name=f"n{number}",
            at=moment,
        )
    found, cursor = [], None
    while True:
        page = (await alice.get("/sessions", params={"limit": 1, **({"cursor": cursor} if cursor else {})})).json()
        found += page["sessions"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [item["updated_at"] for item in found] == moments[::-1]
    assert [item["session_id"] for item in found] == [f"n{n}" for n in reversed(range(len(moments)))]


async def test_d06_leases_and_rates_do_not_depend_on_a_zone(shared: Rack, alice: Client):
    """A lease of a few seconds would be over at once, or never, if a zone were taken for another."""
    seen = await alice.ask()
    assert seen.one("done")["status"] == "completed"
    ((ahead,),) = await sql(shared.database, "select max(lease_expires_at) - max(created_at) from runs")
    assert timedelta(0) < ahead < timedelta(minutes=2)
    await shared.check(seen, turns=1)
