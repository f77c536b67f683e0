"""A turn in a session of 10 messages and in one of 10,000: CPU, transactions, bytes of the write-ahead log."""

import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from backend.infra.embedded.postgres import embedded_postgres
from benchmarks.harness import Target, ask, client, figures, model_server, register, report
from tests.support.server import ServerProcess

SHORT, LONG, TURNS, ROUNDS = 10, 10_000, 20, 4
_FILL = """
with s as (select id from chat_sessions where session_id = :session),
added as (
  insert into chat_messages (session_row_id, seq, type, content)
  select s.id, n + 2, case when n % 2 = 1 then 'human' else 'ai' end, 'Message ' || n || repeat(' of some length', 20)
  from s, generate_series(1, :count) as n
)
update chat_sessions set last_seq = last_seq + :count, message_count = message_count + :count
where session_id = :session
"""


async def counters(engine: AsyncEngine) -> tuple[int, int]:
    """Transactions so far, and bytes of the write-ahead log."""
    query = """
    select (select xact_commit + xact_rollback from pg_stat_database where datname = current_database()),
           (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint
    """
    async with engine.connect() as connection:
        await connection.execute(text("select pg_stat_force_next_flush()"))
        row = (await connection.execute(text(query))).one()
        return int(row[0]), int(row[1])


async def measure(target: Target, engine: AsyncEngine, session: str) -> dict[str, float]:
    """Means of ``TURNS`` turns in ``session``, each followed by a read of the session, as a frontend does."""
    async with client() as http:
        await asyncio.sleep(1.5)  # the statistics of earlier turns are flushed once a second
        cpu, (transactions, log) = target.cpu_seconds(), await counters(engine)
        start = time.perf_counter()
        for _ in range(TURNS):
            await ask(http, target, session)
        seconds = time.perf_counter() - start
        used = target.cpu_seconds() - cpu
        await asyncio.sleep(1.5)
        after = await counters(engine)
    return {
        "cpu_ms": 1000 * used / TURNS,
        "transactions": (after[0] - transactions) / TURNS,
        "log_bytes": (after[1] - log) / TURNS,
        "seconds": seconds / TURNS,
    }


async def prepare(target: Target, engine: AsyncEngine, session: str, count: int) -> None:
    """A session with ``count`` messages, read once so that its copy is in the cache."""
    async with client() as http:
        await ask(http, target, session)
        async with engine.begin() as connection:
            await connection.execute(text(_FILL), {"session": session, "count": count - 2})
        await http.get(f"{target.url}/sessions/{session}", headers=target.headers)


async def run(data_dir: Path, model: str) -> dict[str, list[dict[str, float]]]:
    """Rounds alternate between the two sessions."""
    env = {"LLM_BASE_URL": model, "LLM_MODEL": "scripted", "LLM_API_KEY": "none", "LOG_LEVEL": "warning"}
    async with ServerProcess(data_dir, env=env) as server:
        with embedded_postgres(data_dir) as url:
            engine = create_async_engine(url)
            headers = {"Authorization": f"Bearer {await register(server.url)}"}
            target = Target("citewire", server.url, "/chat/stream", headers, server.pid)
            found: dict[str, list[dict[str, float]]] = {"short": [], "long": []}
            await prepare(target, engine, "short", SHORT)
            await prepare(target, engine, "long", LONG)
            await measure(target, engine, "warm")
            for _ in range(ROUNDS):
                for session in found:
                    found[session].append(await measure(target, engine, session))
            await engine.dispose()
    return found


async def main() -> None:
    """One server for both sessions."""
    data_dir = Path(tempfile.mkdtemp(prefix="citewire-bench-"))
    data_dir.chmod(0o711)
    try:
        async with model_server(tokens=100) as model:
            found = await run(data_dir, model)
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)
    names = ("cpu_ms", "transactions", "log_bytes", "seconds")
    sides: dict[str, Any] = {
        side: {name: figures([item[name] for item in rounds], 2) for name in names} for side, rounds in found.items()
    }
    ratios = {
        name: round(
            statistics.median(item[name] for item in found["long"])
            / statistics.median(item[name] for item in found["short"]),
            2,
        )
        for name in names
    }
    report(
        "history",
        f"within 1.2 times at {LONG} messages against {SHORT}",
        ratios=ratios,
        per_turn=sides,
        turns=TURNS * ROUNDS,
    )


if __name__ == "__main__":
    asyncio.run(main())
