"""What holds after every test, whatever was cut, killed or refused in it (INV of the cases)."""

from typing import Any

from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from tests.support.chat_client import Stream
from tests.support.server import ServerProcess
from tests.support.waiting import until

SETTLED_SECONDS = 30.0

_OPEN_RUNS = "select count(*) from runs where status = 'running'"
_BUSY = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name = 'citewire' and state <> 'idle'
"""
_MISMATCHED = """
select count(*) from runs r
left join chat_messages h on h.id = r.human_message_id and h.type = 'human' and h.run_id = r.id
left join chat_messages a on a.id = r.message_id and a.type = 'ai' and a.run_id = r.id
where h.id is null or a.id is null or a.seq <> h.seq + 1 or a.status <> r.status or a.session_row_id <> h.session_row_id
"""
_WITHOUT_RUN = "select count(*) from chat_messages m where not exists (select from runs r where r.id = m.run_id)"
_COUNTS = """
select s.session_id from chat_sessions s where s.message_count <>
    (select count(*) from chat_messages m where m.session_row_id = s.id)
"""
_DONES = """
select r.id from runs r join run_events e on e.run_id = r.id
group by r.id having sum(array_length(string_to_array(e.events, '"type":"done"'), 1) - 1) > 1
"""


async def check_invariants(
    url: URL, server: ServerProcess | None = None, *seen: Stream, turns: int | None = None
) -> None:
    """Asserts INV 1 to 5 on the database of ``url``: ``turns`` is how many were accepted, ``seen`` what clients got."""
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.connect() as connection:
        await until(lambda: _none(connection, _OPEN_RUNS), SETTLED_SECONDS)
        await until(lambda: _none(connection, _BUSY), SETTLED_SECONDS)
        assert await _scalar(connection, _MISMATCHED) == 0, "a run and its two messages disagree"
        assert await _scalar(connection, _WITHOUT_RUN) == 0, "a message without a run"
        assert (await connection.execute(text(_COUNTS))).all() == []
        assert (await connection.execute(text(_DONES))).all() == [], "a run ended twice"
        if turns is not None:
            assert await _scalar(connection, "select count(*) from runs") == turns
        for stream in seen:
            await _stored_extends(connection, stream)
    await engine.dispose()
    if server is not None:
        nothing_leaked(server)


async def _scalar(connection: AsyncConnection, query: str, **values: Any) -> Any:
    answer = (await connection.execute(text(query), values)).scalar_one()
    await connection.rollback()
    return answer


async def _none(connection: AsyncConnection, query: str) -> bool:
    return await _scalar(connection, query) == 0


async def _stored_extends(connection: AsyncConnection, stream: Stream) -> None:
    """The text read back equals what the client saw, or extends it: a question back is stored, and never streamed."""
    query = "select content from chat_messages where run_id = cast(:id as uuid) and type = 'ai'"
    stored = await _scalar(connection, query, id=stream.run_id)
    assert stored.startswith(stream.text), (stored, stream.text)
    if stream.done and stream.of("hitl_request") == []:
        assert stored == stream.text


def nothing_leaked(server: ServerProcess) -> None:
    """Asserts INV 5 on all that a server wrote."""
    logs = server.logs()
    for secret in (server.env.get("JWT_SECRET_KEY"), server.env.get("LLM_API_KEY"), "correct horse battery", "eyJ"):
        assert secret is None or secret not in logs
    assert "Task exception was never retrieved" not in logs
    assert "was never awaited" not in logs
