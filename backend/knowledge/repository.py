"""What is written of documents, versions and chunks in Postgres. One method is one transaction.

A version that is being made has a row of kind ``ingest`` in the outbox from its first transaction on, and a job that
makes it. When the job is gone the sweeper removes what is left. A row of kind ``version`` says that a version's index
rows and file have still to go. So nothing outside Postgres is ever forgotten.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Row, and_, delete, exists, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from backend.errors import Forbidden, NotFound, StorageUnavailable, TooLarge
from backend.infra.database.engine import transaction
from backend.infra.database.tables import Chunk, Document, DocumentVersion, Job, PurgeOutbox, User
from backend.knowledge.chunk import NewChunk
from backend.knowledge.job_repository import (
    BM25,
    UPLOAD,
    VECTOR_STORE,
    JobRepository,
    Source,
    StoredJob,
    add_job,
)
from backend.knowledge.library import visible
from backend.schemas.auth import Principal
from backend.schemas.documents import Visibility

INGEST, VERSION = "ingest", "version"
INSERT_BATCH = 1_000
UPLOAD_LEASE = timedelta(seconds=60)
"""How long a file may take to be written before its job counts as left."""


@dataclass(frozen=True, slots=True)
class Upload:
    """What is known of a file before it is read. ``filename`` is clean."""

    owner_id: UUID | None
    visibility: Visibility
    filename: str
    file_type: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """``job_id`` tells what becomes of the upload. ``version_id`` is the version whose file is to be written, ``None``
    when the current version has these bytes already, or the newest one in the making."""

    job_id: UUID
    document_id: UUID
    version_id: UUID | None


@dataclass(frozen=True, slots=True)
class Deleted:
    """``chunks`` counts the leaves that answered till now."""

    document_id: UUID
    visibility: Visibility
    chunks: int
    job_id: UUID


def _target(document_id: UUID, version_id: UUID) -> str:
    return f"{document_id}/{version_id}"


@dataclass(frozen=True, slots=True)
class Purge:
    """An outbox row: a version whose index rows and file have to go."""

    id: UUID
    document_id: UUID
    version_id: UUID


class KnowledgeRepository:
    """Raises :class:`StorageUnavailable` when Postgres cannot be reached."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    # --- making a version ---------------------------------------------------------------------------------------

    async def begin(self, upload: Upload, max_bytes: int, worker_id: str) -> Accepted:
        """Opens a version ``processing`` of the document of that name, which is made if it is new, with its job.

        Raises :class:`TooLarge` when the owner's documents would hold more than ``max_bytes``.
        """
        async with transaction(self._engine) as connection:
            await connection.execute(select(User.id).where(User.id == upload.owner_id).with_for_update(key_share=True))
            document = await self._lock_or_make(connection, upload)
            known = await self._known(connection, document, upload)
            if known is not None:
                return Accepted(known, document.id, None)
            await self._check_quota(connection, upload, document.id, max_bytes)
            version_id = await self._open_version(connection, document, upload)
            due_at = func.clock_timestamp() + UPLOAD_LEASE
            values = {**_job_values(document, upload), "version_id": version_id, "step": UPLOAD}
            job_id = await add_job(connection, **values, status="running", worker_id=worker_id, due_at=due_at)
            return Accepted(job_id, document.id, version_id)

    async def _known(self, connection: AsyncConnection, document: Row[Any], upload: Upload) -> UUID | None:
        """The job for bytes that the document has already: one that is done, or the one that makes them."""
        newest = (
            select(DocumentVersion.sha256, Job.id.label("job_id"))
            .join(Job, Job.version_id == DocumentVersion.id)
            .where(DocumentVersion.document_id == document.id, DocumentVersion.status == "processing")
            .where(Job.status.in_(("pending", "running")), ~Job.cancel_requested)
            .order_by(DocumentVersion.version.desc())
        )
        underway = (await connection.execute(newest.limit(1))).first()
        if underway is not None:
            return underway.job_id if underway.sha256 == upload.sha256 else None
        current = await self._version(connection, document.current_version_id)
        if current is None or current.sha256 != upload.sha256:
            return None
        count = current.chunk_count
        values = {**_job_values(document, upload), "version_id": current.id, "step": VECTOR_STORE, "percent": 100}
        return await add_job(connection, **values, status="completed", total_chunks=count, processed_chunks=count)

    async def _lock_or_make(self, connection: AsyncConnection, upload: Upload) -> Row[Any]:
        same = [Document.filename == upload.filename, Document.visibility == upload.visibility]
        if upload.visibility == "private":
            same.append(Document.owner_id == upload.owner_id)
        values = {
            "owner_id": upload.owner_id,
            "visibility": upload.visibility,
            "filename": upload.filename,
            "file_type": upload.file_type,
        }
        for _ in range(5):  # it may be deleted between the two statements
            await connection.execute(upsert(Document).values(values).on_conflict_do_nothing())
            found = (await connection.execute(select(Document.__table__).where(*same).with_for_update())).first()
            if found is not None:
                return found
        raise StorageUnavailable(retry_after=1)

    async def _version(self, connection: AsyncConnection, version_id: UUID | None) -> Row[Any] | None:
        if version_id is None:
            return None
        query = select(DocumentVersion.__table__).where(DocumentVersion.id == version_id)
        return (await connection.execute(query)).first()

    async def _check_quota(
        self, connection: AsyncConnection, upload: Upload, document_id: UUID, max_bytes: int
    ) -> None:
        query = (
            select(func.coalesce(func.sum(DocumentVersion.size), 0))
            .join(Document, Document.id == DocumentVersion.document_id)
            .where(Document.owner_id == upload.owner_id, Document.id != document_id)
            .where(DocumentVersion.status != "failed")
        )
        if int((await connection.execute(query)).scalar_one()) + upload.size > max_bytes:
            raise TooLarge()

    async def _open_version(self, connection: AsyncConnection, document: Row[Any], upload: Upload) -> UUID:
        last = select(func.coalesce(func.max(DocumentVersion.version), 0)).where(
            DocumentVersion.document_id == document.id
        )
        version = int((await connection.execute(last)).scalar_one()) + 1
        made = insert(DocumentVersion).values(
            document_id=document.id, version=version, sha256=upload.sha256, size=upload.size
        )
        version_id = (await connection.execute(made.returning(DocumentVersion.id))).scalar_one()
        await connection.execute(insert(PurgeOutbox).values(kind=INGEST, target=_target(document.id, version_id)))
        return version_id

    async def drop_chunks(self, version_id: UUID) -> None:
        """Removes what an attempt stored before it was broken off."""
        async with transaction(self._engine) as connection:
            await connection.execute(delete(Chunk).where(Chunk.version_id == version_id))

    async def store_chunks(
        self, jobs: JobRepository, job: StoredJob, source: Source, chunks: Sequence[NewChunk], pages: int | None
    ) -> int:
        """Stores the chunks of a version that does not answer yet; the number of leaves.

        Raises :class:`NotFound` when the version was removed meanwhile, and :class:`JobLost`.
        """
        leaves = sum(1 for chunk in chunks if chunk.level == 3)
        mine = and_(DocumentVersion.id == source.version_id, DocumentVersion.status == "processing")
        async with transaction(self._engine) as connection:
            known = update(DocumentVersion).where(mine).values(pages=pages, chunk_count=leaves)
            if (await connection.execute(known)).rowcount == 0:
                raise NotFound()
            await self._insert_chunks(connection, source.version_id, chunks)
            await jobs.write(connection, job.id, step=VECTOR_STORE, percent=0, total_chunks=leaves, processed_chunks=0)
        return leaves

    async def publish(self, jobs: JobRepository, job: StoredJob, source: Source) -> bool:
        """Makes the version the one that answers, ends the job, and hands the old version to the purge.

        False when a newer version answers already; then this one goes. Raises :class:`NotFound` when the document
        or the version was removed meanwhile, and :class:`JobLost`.
        """
        async with transaction(self._engine) as connection:
            document = await self._lock(connection, source.document_id)
            version = await self._version(connection, source.version_id)
            if document is None or version is None or version.status != "processing":
                raise NotFound()
            await jobs.write(connection, job.id, status="completed", percent=100, processed_chunks=version.chunk_count)
            current = await self._version(connection, document.current_version_id)
            if current is not None and current.version > source.version:
                await self._take_back(connection, source.document_id, source.version_id, None)
                return False
            ready = update(DocumentVersion).where(DocumentVersion.id == source.version_id)
            await connection.execute(ready.values(status="ready"))
            await connection.execute(
                update(Document).where(Document.id == document.id).values(current_version_id=source.version_id)
            )
            await self._discard(connection, source.document_id, keep=source.version_id)
            target = _target(source.document_id, source.version_id)
            await connection.execute(delete(PurgeOutbox).where(PurgeOutbox.target == target))
            return True

    async def _lock(self, connection: AsyncConnection, document_id: UUID) -> Row[Any] | None:
        query = select(Document.__table__).where(Document.id == document_id).with_for_update()
        return (await connection.execute(query)).first()

    async def _insert_chunks(self, connection: AsyncConnection, version_id: UUID, chunks: Sequence[NewChunk]) -> None:
        for start in range(0, len(chunks), INSERT_BATCH):
            rows = [
                {
                    "id": chunk.id,
                    "version_id": version_id,
                    "level": chunk.level,
                    "parent_id": chunk.parent_id,
                    "root_id": chunk.root_id,
                    "ordinal": chunk.ordinal,
                    "page_number": chunk.page_number,
                    "heading": chunk.heading,
                    "text": chunk.text,
                }
                for chunk in chunks[start : start + INSERT_BATCH]
            ]
            await connection.execute(insert(Chunk), rows)

    async def _discard(self, connection: AsyncConnection, document_id: UUID, keep: UUID | None) -> None:
        """Removes the finished versions of a document and hands them to the purge; those in the making see to it
        themselves."""
        done = and_(
            DocumentVersion.document_id == document_id,
            DocumentVersion.id != keep if keep else text("true"),
            DocumentVersion.status != "processing",
        )
        removed = await connection.execute(delete(DocumentVersion).where(done).returning(DocumentVersion.id))
        rows = [{"kind": VERSION, "target": f"{document_id}/{version_id}"} for version_id in removed.scalars()]
        if rows:
            await connection.execute(insert(PurgeOutbox), rows)

    async def abandon(self, document_id: UUID, version_id: UUID, code: str | None) -> None:
        """Takes the version back and hands what it left to the purge.

        With an older version that answers, ``code`` stays as the reason; a document that never was ready goes too.
        """
        async with transaction(self._engine) as connection:
            await self._take_back(connection, document_id, version_id, code)

    async def give_up(
        self, jobs: JobRepository, job: StoredJob, code: str, warnings: list[dict[str, object]] | None
    ) -> None:
        """Ends a job with ``code`` and takes back what an upload made. Raises :class:`JobLost`."""
        values: dict[str, Any] = {"status": "failed", "code": code}
        if warnings is not None:
            values["warnings"] = warnings
        async with transaction(self._engine) as connection:
            if job.kind == "upload" and job.version_id is not None:
                await self._take_back(connection, job.document_id, job.version_id, code)
            await jobs.write(connection, job.id, **values)

    async def _take_back(
        self, connection: AsyncConnection, document_id: UUID, version_id: UUID, code: str | None
    ) -> None:
        document = await self._lock(connection, document_id)
        version = await self._version(connection, version_id)
        if version is not None and version.status == "ready":
            return  # it was published
        mine = and_(DocumentVersion.id == version_id, DocumentVersion.status == "processing")
        if document is not None and document.current_version_id is not None and code is not None:
            await connection.execute(update(DocumentVersion).where(mine).values(status="failed", code=code))
            await connection.execute(delete(Chunk).where(Chunk.version_id == version_id))
        else:
            await connection.execute(delete(DocumentVersion).where(mine))
        others = exists().where(DocumentVersion.document_id == document_id)
        await connection.execute(delete(Document).where(Document.id == document_id, ~others))
        # It may have been given up already; then its row has the other kind, or is done and gone.
        target = _target(document_id, version_id)
        kept = await connection.execute(update(PurgeOutbox).where(PurgeOutbox.target == target).values(kind=VERSION))
        if kept.rowcount == 0:
            await connection.execute(insert(PurgeOutbox).values(kind=VERSION, target=target))

    # --- the outbox ---------------------------------------------------------------------------------------------

    async def orphans(self, older_than: timedelta) -> list[tuple[UUID, UUID]]:
        """Documents and versions in the making that no job makes any more."""
        job = exists().where(
            Job.status.in_(("pending", "running")),
            func.concat(Job.document_id, "/", Job.version_id) == PurgeOutbox.target,
        )
        query = select(PurgeOutbox.target).where(
            PurgeOutbox.kind == INGEST, PurgeOutbox.created_at < func.now() - older_than, ~job
        )
        async with transaction(self._engine) as connection:
            targets = (await connection.execute(query.limit(100))).scalars().all()
        return [(UUID(document_id), UUID(version_id)) for document_id, version_id in (t.split("/") for t in targets)]

    async def purges_of(self, document_id: UUID) -> list[Purge]:
        """What is to be purged of one document."""
        query = select(PurgeOutbox.id, PurgeOutbox.target).where(
            PurgeOutbox.kind == VERSION, PurgeOutbox.target.startswith(f"{document_id}/")
        )
        async with transaction(self._engine) as connection:
            rows = (await connection.execute(query.order_by(PurgeOutbox.id))).all()
        return [Purge(row.id, *(UUID(part) for part in row.target.split("/"))) for row in rows]

    async def purges(self, limit: int, after: UUID | None = None) -> list[Purge]:
        """What is to be purged, oldest first."""
        query = select(PurgeOutbox.id, PurgeOutbox.target).where(PurgeOutbox.kind == VERSION)
        if after is not None:
            query = query.where(PurgeOutbox.id > after)
        async with transaction(self._engine) as connection:
            rows = (await connection.execute(query.order_by(PurgeOutbox.id).limit(limit))).all()
        return [Purge(row.id, *(UUID(part) for part in row.target.split("/"))) for row in rows]

    async def purged(self, purge_id: UUID) -> None:
        """Removes an outbox row that is done."""
        async with transaction(self._engine) as connection:
            await connection.execute(delete(PurgeOutbox).where(PurgeOutbox.id == purge_id))

    # --- removing ----------------------------------------------------------------------------------------------

    async def delete_document(self, principal: Principal, filename: str, document_id: UUID | None) -> Deleted:
        """Removes a document, hands its versions to the purge and leaves a job that sees to it.

        One's own private document of that name first, then the shared one. Raises :class:`NotFound`, or
        :class:`Forbidden` for a shared document when the principal is no admin.
        """
        query = select(Document.__table__).where(Document.filename == filename, visible(principal.id))
        if document_id is not None:
            query = query.where(Document.id == document_id)
        async with transaction(self._engine) as connection:
            ordered = query.order_by(Document.visibility)  # "private" before "shared"
            document = (await connection.execute(ordered.limit(1).with_for_update())).first()
            if document is None:
                raise NotFound()
            if document.visibility == "shared" and principal.role != "admin":
                raise Forbidden()
            current = await self._version(connection, document.current_version_id)
            await self._discard(connection, document.id, keep=None)
            await connection.execute(delete(Document).where(Document.id == document.id))
            chunks = current.chunk_count if current is not None else 0
            job_id = await add_job(
                connection,
                kind="delete",
                owner_id=principal.id,
                visibility=document.visibility,
                filename=document.filename,
                document_id=document.id,
                step=BM25,
                total_chunks=chunks,
            )
        return Deleted(document.id, document.visibility, chunks, job_id)

    async def release_owner(self, user_id: UUID, limit: int) -> int:
        """Removes ``limit`` private documents as :meth:`delete_document` does; with none left frees the shared ones."""
        own, shared = Document.owner_id == user_id, Document.visibility == "shared"
        private = select(Document.id).where(own, ~shared).limit(limit).with_for_update()
        async with transaction(self._engine) as connection:
            found = (await connection.execute(private)).scalars().all()
            for document_id in found:
                await self._discard(connection, document_id, keep=None)
            await connection.execute(delete(Document).where(Document.id.in_(found)))
            if not found:
                await connection.execute(update(Document).where(own, shared).values(owner_id=None))
        return len(found)


def _job_values(document: Row[Any], upload: Upload) -> dict[str, Any]:
    return {
        "kind": "upload",
        "owner_id": upload.owner_id,
        "visibility": upload.visibility,
        "filename": upload.filename,
        "document_id": document.id,
    }
