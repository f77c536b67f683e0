"""Jobs in Postgres: who works on which, how far it is, how it ended. One method is one transaction.

A job is taken with a lease that its worker renews. Every write of a worker says which worker it is, so one that was
frozen for longer than its lease writes nothing more (:class:`JobLost`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from sqlalchemy import ColumnElement, Row, and_, delete, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from backend.errors import NotFound
from backend.infra.database.engine import transaction
from backend.infra.database.tables import Document, DocumentVersion, Job
from backend.schemas.auth import Principal
from backend.schemas.documents import JobKind, JobStatus, Visibility

UPLOAD, CLEANUP, PARSE, PARENT_STORE, VECTOR_STORE = "upload", "cleanup", "parse", "parent_store", "vector_store"
PREPARE, BM25, MILVUS = "prepare", "bm25", "milvus"
STEPS: Mapping[JobKind, tuple[str, ...]] = {
    "upload": (UPLOAD, CLEANUP, PARSE, PARENT_STORE, VECTOR_STORE),
    "delete": (PREPARE, BM25, MILVUS, PARENT_STORE),
}
"""The keys of a job's steps, in order."""
_ACTIVE = Job.status.in_(("pending", "running"))


class JobLost(Exception):
    """The job is not this worker's any more: its lease ran out, or it is gone with its owner."""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as it stands. ``step`` is worked on, or was when the job ended; ``percent`` is its."""

    id: UUID
    kind: JobKind
    visibility: Visibility
    filename: str
    document_id: UUID
    version_id: UUID | None
    status: JobStatus
    step: str
    percent: int
    total_chunks: int
    processed_chunks: int
    generation: str | None
    attempts: int
    cancel_requested: bool
    code: str | None
    warnings: list[dict[str, Any]]
    created_at: datetime
    updated_at: datetime

    @property
    def ended(self) -> bool:
        return self.status in ("completed", "failed")


@dataclass(frozen=True, slots=True)
class Source:
    """What an upload job works on; ``owner_id`` and ``shared`` are the document's."""

    document_id: UUID
    version_id: UUID
    version: int
    owner_id: UUID | None
    shared: bool
    file_type: str


def stored_job(row: Row[Any]) -> StoredJob:
    """The job of a row of the table."""
    return StoredJob(
        id=row.id,
        kind=cast(JobKind, row.kind),
        visibility=cast(Visibility, row.visibility),
        filename=row.filename,
        document_id=row.document_id,
        version_id=row.version_id,
        status=cast(JobStatus, row.status),
        step=row.step,
        percent=row.percent,
        total_chunks=row.total_chunks,
        processed_chunks=row.processed_chunks,
        generation=row.generation,
        attempts=row.attempts,
        cancel_requested=row.cancel_requested,
        code=row.code,
        warnings=row.warnings,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


ACTIVITY_SECONDS = 20


async def add_job(connection: AsyncConnection, **values: Any) -> UUID:
    """Writes a job within the transaction that says what it is for; its id."""
    return (await connection.execute(insert(Job).values(values).returning(Job.id))).scalar_one()


def seen_by(principal: Principal) -> ColumnElement[bool]:
    """The owner predicate: one's own jobs; for admins those of shared documents too."""
    own = Job.owner_id == principal.id
    return or_(own, Job.visibility == "shared") if principal.role == "admin" else own


class JobRepository:
    """The jobs as ``worker_id`` sees them. Raises :class:`StorageUnavailable` when Postgres cannot be reached."""

    def __init__(self, engine: AsyncEngine, worker_id: str, lease: timedelta) -> None:
        self._engine = engine
        self.worker_id = worker_id
        self._lease = lease

    # --- reading ------------------------------------------------------------------------------------------------

    async def get(self, job_id: UUID) -> StoredJob | None:
        """The job, whosever it is."""
        async with transaction(self._engine) as connection:
            row = (await connection.execute(select(Job.__table__).where(Job.id == job_id))).first()
        return stored_job(row) if row is not None else None

    async def one(self, principal: Principal, kind: JobKind, job_id: UUID) -> StoredJob:
        """Raises :class:`NotFound` for an unknown and for a foreign one."""
        query = select(Job.__table__).where(Job.id == job_id, Job.kind == kind, seen_by(principal))
        async with transaction(self._engine) as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            raise NotFound()
        return stored_job(row)

    async def newest(self, principal: Principal, kind: JobKind, limit: int) -> list[StoredJob]:
        """The principal's jobs, newest first."""
        query = select(Job.__table__).where(Job.kind == kind, seen_by(principal)).order_by(Job.id.desc()).limit(limit)
        async with transaction(self._engine) as connection:
            return [stored_job(row) for row in await connection.execute(query)]

    async def changed(self, principal: Principal, since: datetime | None, limit: int) -> list[StoredJob]:
        """Jobs that changed at ``since`` or later, oldest change first; without it those that have not ended."""
        news = _ACTIVE if since is None else Job.updated_at >= since
        query = select(Job.__table__).where(seen_by(principal), news).order_by(Job.updated_at, Job.id).limit(limit)
        async with transaction(self._engine) as connection:
            return [stored_job(row) for row in await connection.execute(query)]

    async def activity(self) -> tuple[Any, ...]:
        """What differs when any job, whoever's, changed within the last seconds; also by changes that grow old.

        Not the last change alone: a transaction that took long commits after a younger one.
        """
        young = Job.updated_at >= func.now() - timedelta(seconds=ACTIVITY_SECONDS)
        of_all = select(func.count(), func.max(Job.updated_at), func.sum(func.extract("epoch", Job.updated_at)))
        async with transaction(self._engine) as connection:
            return tuple((await connection.execute(of_all.where(young))).one())

    async def now(self) -> datetime:
        """The time of the database."""
        async with transaction(self._engine) as connection:
            return (await connection.execute(select(func.clock_timestamp()))).scalar_one()

    async def source(self, job: StoredJob) -> Source:
        """What an upload works on. Raises :class:`NotFound` when the document or the version is gone."""
        query = (
            select(Document.__table__, DocumentVersion.version)
            .join(DocumentVersion, DocumentVersion.document_id == Document.id)
            .where(DocumentVersion.id == job.version_id)
        )
        async with transaction(self._engine) as connection:
            row = (await connection.execute(query)).first()
        if row is None or job.version_id is None:
            raise NotFound()
        shared = row.visibility == "shared"
        return Source(job.document_id, job.version_id, row.version, row.owner_id, shared, row.file_type)

    # --- working ------------------------------------------------------------------------------------------------

    async def claim(self, job_id: UUID | None = None) -> StoredJob | None:
        """Takes the job that has been due for longest, or that one if it is due; ``None`` when there is none."""
        due = select(Job.id).where(_ACTIVE, Job.due_at <= func.now())
        if job_id is not None:
            due = due.where(Job.id == job_id)
        due = due.order_by(Job.due_at, Job.id).limit(1).with_for_update(skip_locked=True)
        taken = (
            update(Job)
            .where(Job.id == due.scalar_subquery())
            .values(status="running", worker_id=self.worker_id, attempts=Job.attempts + 1, **self._renewed())
            .returning(*Job.__table__.c)
        )
        async with transaction(self._engine) as connection:
            row = (await connection.execute(taken)).first()
        return stored_job(row) if row is not None else None

    def _renewed(self) -> dict[str, Any]:
        return {"due_at": func.clock_timestamp() + self._lease, "updated_at": func.clock_timestamp()}

    def _mine(self, job_id: UUID) -> ColumnElement[bool]:
        return and_(Job.id == job_id, Job.status == "running", Job.worker_id == self.worker_id)

    async def renew(self, job_id: UUID) -> bool:
        """Keeps the lease; whether the job is to be cancelled. Raises :class:`JobLost`."""
        renewed = update(Job).where(self._mine(job_id)).values(due_at=func.clock_timestamp() + self._lease)
        async with transaction(self._engine) as connection:
            row = (await connection.execute(renewed.returning(Job.cancel_requested))).first()
        if row is None:
            raise JobLost
        return row.cancel_requested

    async def progress(self, job_id: UUID, step: str, percent: int, **values: Any) -> None:
        """Says how far the job is. Raises :class:`JobLost`."""
        async with transaction(self._engine) as connection:
            await self.write(connection, job_id, step=step, percent=percent, **values)

    async def write(self, connection: AsyncConnection, job_id: UUID, **values: Any) -> None:
        """As :meth:`progress`, within a transaction that does the work too."""
        written = update(Job).where(self._mine(job_id)).values({**self._renewed(), **values})
        if (await connection.execute(written)).rowcount == 0:
            raise JobLost

    async def complete(self, job_id: UUID, **values: Any) -> None:
        """Ends the job well. Raises :class:`JobLost`."""
        async with transaction(self._engine) as connection:
            await self.write(connection, job_id, status="completed", percent=100, **values)

    async def postpone(self, job_id: UUID, seconds: float, **values: Any) -> None:
        """Gives the job back, to be taken ``seconds`` from now at the earliest. Raises :class:`JobLost`."""
        values |= {"status": "pending", "due_at": func.clock_timestamp() + timedelta(seconds=seconds)}
        async with transaction(self._engine) as connection:
            await self.write(connection, job_id, **values)

    # --- what others say ----------------------------------------------------------------------------------------

    async def cancel(self, job_ids: Sequence[UUID]) -> None:
        """Asks the workers to end these jobs, and makes those due at once that nobody works on."""
        asked = update(Job).where(Job.id.in_(job_ids), _ACTIVE).values(cancel_requested=True)
        waiting = update(Job).where(Job.id.in_(job_ids), Job.status == "pending").values(due_at=func.now())
        async with transaction(self._engine) as connection:
            await connection.execute(asked)
            await connection.execute(waiting)

    async def of_document(self, document_id: UUID) -> list[UUID]:
        """The uploads of a document that have not ended."""
        query = select(Job.id).where(Job.document_id == document_id, Job.kind == "upload", _ACTIVE)
        async with transaction(self._engine) as connection:
            return list((await connection.execute(query)).scalars())

    async def forget(self, older_than: timedelta) -> None:
        """Drops jobs that ended that long ago."""
        async with transaction(self._engine) as connection:
            await connection.execute(delete(Job).where(~_ACTIVE, Job.updated_at < func.now() - older_than))
