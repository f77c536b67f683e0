"""SQL of runs and their events; each function runs inside the caller's transaction."""

from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from sqlalchemy import Row, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from backend.chat.hitl import pending_state
from backend.chat.records import EventBatch, RunRef, RunRow
from backend.infra.database.tables import ChatSession, Run, RunEvents
from backend.schemas.chat import ErrorInfo

AnyRow = Row[*tuple[Any, ...]]
_RUN_COLUMNS = (
    Run.id,
    Run.user_id,
    Run.session_row_id,
    Run.human_message_id,
    Run.message_id,
    Run.status,
    Run.language,
    Run.error,
    Run.finish_reason,
    Run.asked_hitl,
    Run.last_seq,
    Run.created_at,
    Run.finished_at,
    Run.request_hash,
    (Run.lease_expires_at < func.now()).label("lease_expired"),
    ChatSession.session_id,
)
_RUNS = select(*_RUN_COLUMNS).join(ChatSession, ChatSession.id == Run.session_row_id)


def _ref(row: AnyRow) -> RunRef:
    return RunRef(row.id, row.user_id, row.session_row_id, row.session_id, row.human_message_id, row.message_id)


def _run(row: AnyRow) -> RunRow:
    error = ErrorInfo.model_validate(row.error) if row.error else None
    return RunRow(
        _ref(row),
        row.status,
        row.language,
        error,
        row.finish_reason,
        row.last_seq,
        row.created_at,
        row.finished_at,
        row.lease_expired,
        pending_state(row.asked_hitl),
    )


async def by_key(connection: AsyncConnection, user_id: UUID, session_id: str, key: str) -> tuple[RunRef, str] | None:
    """The run that was claimed with ``key`` in this session, and the hash of its request."""
    row = (
        await connection.execute(
            _RUNS.where(
                ChatSession.user_id == user_id, ChatSession.session_id == session_id, Run.client_message_id == key
            )
        )
    ).first()
    return None if row is None else (_ref(row), row.request_hash)


async def get(connection: AsyncConnection, run_id: UUID, user_id: UUID) -> RunRow | None:
    """The run, if it is the user's."""
    row = (await connection.execute(_RUNS.where(Run.id == run_id, Run.user_id == user_id))).first()
    return None if row is None else _run(row)


async def active(connection: AsyncConnection, session_row_id: UUID) -> RunRow | None:
    """The running run of a session."""
    row = (await connection.execute(_RUNS.where(Run.session_row_id == session_row_id, Run.status == "running"))).first()
    return None if row is None else _run(row)


async def renew(
    connection: AsyncConnection, worker_id: str, run_ids: Sequence[UUID], lease_seconds: float
) -> set[UUID]:
    """Renew the leases that this worker still holds, and give those; a missing id is lost."""
    rows = await connection.execute(
        update(Run)
        .where(Run.id.in_(run_ids), Run.worker_id == worker_id, Run.status == "running")
        .values(lease_expires_at=func.now() + func.make_interval(0, 0, 0, 0, 0, 0, lease_seconds))
        .returning(Run.id)
    )
    return set(rows.scalars())


async def request_stop(connection: AsyncConnection, run_id: UUID) -> None:
    """Ask the owner, on whatever worker, to stop the run."""
    await connection.execute(update(Run).where(Run.id == run_id, Run.status == "running").values(stop_requested=True))


async def stop_requests(connection: AsyncConnection, worker_id: str, run_ids: Sequence[UUID]) -> list[UUID]:
    """Those of this worker's runs that someone asked to stop."""
    query = select(Run.id).where(Run.id.in_(run_ids), Run.worker_id == worker_id, Run.stop_requested)
    return list((await connection.execute(query)).scalars())


async def expired(connection: AsyncConnection, limit: int) -> list[RunRow]:
    """Running runs whose lease has expired, oldest first."""
    query = _RUNS.where(Run.status == "running", Run.lease_expires_at < func.now())
    return [_run(row) for row in await connection.execute(query.order_by(Run.lease_expires_at).limit(limit))]


async def take_over(connection: AsyncConnection, run_id: UUID, owner: str, lease_seconds: float) -> bool:
    """Make ``owner`` the owner of a running run whose lease has expired; false, with nothing done, for any other.

    From then on the worker that had it can write nothing more. The lock waits for a batch that it is just writing
    (``for update`` and the ``for key share`` of :func:`insert_events` exclude each other; an update alone would not).
    """
    expired_run = select(Run.id).where(Run.id == run_id, Run.status == "running", Run.lease_expires_at < func.now())
    if (await connection.execute(expired_run.with_for_update())).first() is None:
        return False
    lease = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, lease_seconds)
    values = {"worker_id": owner, "epoch": Run.epoch + 1, "lease_expires_at": lease}
    await connection.execute(update(Run).where(Run.id == run_id).values(values))
    return True


async def forget_taken_hitl(connection: AsyncConnection, session_row_id: UUID) -> None:
    """Let the running run of a session, if there is one, put no question back at its end."""
    running = update(Run).where(Run.session_row_id == session_row_id, Run.status == "running")
    await connection.execute(running.values(taken_hitl=None))


_INSERT_EVENTS = text(
    """
    insert into run_events (run_id, first_seq, last_seq, events)
    select b.run_id, b.first_seq, b.last_seq, b.events
    from unnest(cast(:run_ids as uuid[]), cast(:first_seqs as bigint[]), cast(:last_seqs as bigint[]),
                cast(:events as text[])) as b(run_id, first_seq, last_seq, events)
    join runs on runs.id = b.run_id and runs.status = 'running' and runs.worker_id = :worker_id
    for key share of runs
    on conflict (run_id, first_seq) do update set last_seq = excluded.last_seq, events = excluded.events
    """
)
"""The join is the fence: a worker that lost a run can add nothing to its log. A batch that is there already, because
the answer to its commit was lost, is written again: it has only grown at its end."""


async def insert_events(connection: AsyncConnection, batches: Sequence[EventBatch], worker_id: str) -> None:
    """Append batches of running runs of this worker in one statement."""
    if not batches:
        return
    await connection.execute(
        _INSERT_EVENTS,
        {
            "run_ids": [batch.run_id for batch in batches],
            "first_seqs": [batch.first_seq for batch in batches],
            "last_seqs": [batch.last_seq for batch in batches],
            "events": [b"\n".join(batch.events).decode() for batch in batches],
            "worker_id": worker_id,
        },
    )


async def read_events(
    connection: AsyncConnection, run_id: UUID, after: int, limit: int | None = None
) -> list[EventBatch]:
    """Stored batches that hold an event above ``after``, ascending."""
    rows = await connection.execute(
        select(RunEvents.first_seq, RunEvents.events)
        .where(RunEvents.run_id == run_id, RunEvents.last_seq > after)
        .order_by(RunEvents.first_seq)
        .limit(limit)
    )
    return [EventBatch(run_id, row.first_seq, cast(str, row.events).encode().split(b"\n")) for row in rows]


async def drop_old_events(connection: AsyncConnection, retention_hours: float) -> None:
    """Delete event batches of ended runs after retention; their streams are rebuilt from the rows."""
    ended = select(Run.id).where(
        Run.finished_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, retention_hours * 3600)
    )
    await connection.execute(RunEvents.__table__.delete().where(RunEvents.run_id.in_(ended)))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]


async def release_keys(connection: AsyncConnection, hours: float) -> None:
    """Null idempotency keys older than ``hours`` (they are kept 24 h)."""
    await connection.execute(
        update(Run)
        .where(
            Run.client_message_id.is_not(None),
            Run.created_at < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, hours * 3600),
        )
        .values(client_message_id=None)
    )
