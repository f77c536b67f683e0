"""What is written of documents, versions and chunks in Postgres. One method is one transaction.

A version that is being made has a row of kind ``ingest`` in the outbox from its first transaction on. Its time is
renewed while the maker lives; when it gets old the maker is gone, and the sweeper removes what it left. A row of kind
``version`` says that a version's index rows and file have still to go. So nothing outside Postgres is ever forgotten.
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
from backend.infra.database.tables import Chunk, Document, DocumentVersion, PurgeOutbox, User
from backend.knowledge.chunk import NewChunk
from backend.knowledge.library import visible
from backend.schemas.auth import Principal
from backend.schemas.documents import Visibility

INGEST, VERSION = "ingest", "version"
INSERT_BATCH = 1_000


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
class Unchanged:
    """The current version has these bytes already."""

    document_id: UUID
    chunk_count: int


@dataclass(frozen=True, slots=True)
class BegunVersion:
    """A version in the making. ``owner_id`` is the document's owner."""

    document_id: UUID
    version_id: UUID
    version: int
    owner_id: UUID | None
    shared: bool

    @property
    def target(self) -> str:
        return f"{self.document_id}/{self.version_id}"


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

    async def begin(self, upload: Upload, max_bytes: int) -> BegunVersion | Unchanged:
        """Opens a version ``processing`` of the document of that name, which is made if it is new.

        Raises :class:`TooLarge` when the owner's documents would hold more than ``max_bytes``.
        """
        async with transaction(self._engine) as connection:
            await connection.execute(select(User.id).where(User.id == upload.owner_id).with_for_update(key_share=True))
            document = await self._lock_or_make(connection, upload)
            current = await self._version(connection, document.current_version_id)
            if current is not None and current.sha256 == upload.sha256:
                return Unchanged(document.id, current.chunk_count)
            await self._check_quota(connection, upload, document.id, max_bytes)
            return await self._open_version(connection, document, upload)

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

    async def _open_version(self, connection: AsyncConnection, document: Row[Any], upload: Upload) -> BegunVersion:
        last = select(func.coalesce(func.max(DocumentVersion.version), 0)).where(
            DocumentVersion.document_id == document.id
        )
        version = int((await connection.execute(last)).scalar_one()) + 1
        made = insert(DocumentVersion).values(
            document_id=document.id, version=version, sha256=upload.sha256, size=upload.size
        )
        version_id = (await connection.execute(made.returning(DocumentVersion.id))).scalar_one()
        begun = BegunVersion(document.id, version_id, version, document.owner_id, document.visibility == "shared")
        await connection.execute(insert(PurgeOutbox).values(kind=INGEST, target=begun.target))
        return begun

    async def renew(self, begun: BegunVersion) -> None:
        """Says that the maker of the version lives."""
        async with transaction(self._engine) as connection:
            mine = and_(PurgeOutbox.kind == INGEST, PurgeOutbox.target == begun.target)
            await connection.execute(update(PurgeOutbox).where(mine).values(created_at=func.clock_timestamp()))

    async def publish(self, begun: BegunVersion, chunks: Sequence[NewChunk], pages: int | None) -> bool:
        """Makes the version the one that answers, with all its chunks, and hands the old one to the purge.

        False, with nothing changed, when a newer version answers already. Raises :class:`NotFound` when the
        document or the version was removed meanwhile.
        """
        async with transaction(self._engine) as connection:
            document = await self._lock(connection, begun.document_id)
            version = await self._version(connection, begun.version_id)
            if document is None or version is None or version.status != "processing":
                raise NotFound()
            current = await self._version(connection, document.current_version_id)
            if current is not None and current.version > begun.version:
                return False
            await self._insert_chunks(connection, begun.version_id, chunks)
            leaves = sum(1 for chunk in chunks if chunk.level == 3)
            ready = update(DocumentVersion).where(DocumentVersion.id == begun.version_id)
            await connection.execute(ready.values(status="ready", pages=pages, chunk_count=leaves))
            await connection.execute(
                update(Document).where(Document.id == document.id).values(current_version_id=begun.version_id)
            )
            await self._discard(connection, begun.document_id, keep=begun.version_id)
            await connection.execute(delete(PurgeOutbox).where(PurgeOutbox.target == begun.target))
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

    async def abandon(self, begun: BegunVersion, code: str | None) -> None:
        """Takes the version back and hands what it left to the purge.

        With an older version that answers, ``code`` stays as the reason; a document that never was ready goes too.
        """
        async with transaction(self._engine) as connection:
            document = await self._lock(connection, begun.document_id)
            version = await self._version(connection, begun.version_id)
            if version is not None and version.status == "ready":
                return  # it was published, and whoever waited for that was cancelled
            mine = and_(DocumentVersion.id == begun.version_id, DocumentVersion.status == "processing")
            if document is not None and document.current_version_id is not None and code is not None:
                await connection.execute(update(DocumentVersion).where(mine).values(status="failed", code=code))
            else:
                await connection.execute(delete(DocumentVersion).where(mine))
            others = exists().where(DocumentVersion.document_id == begun.document_id)
            await connection.execute(delete(Document).where(Document.id == begun.document_id, ~others))
            # The maker may have been given up already; then its row has the other kind, or is done and gone.
            kept = await connection.execute(
                update(PurgeOutbox).where(PurgeOutbox.target == begun.target).values(kind=VERSION)
            )
            if kept.rowcount == 0:
                await connection.execute(insert(PurgeOutbox).values(kind=VERSION, target=begun.target))

    # --- the outbox ---------------------------------------------------------------------------------------------

    async def dead_ingests(self, older_than: timedelta) -> list[BegunVersion]:
        """Versions whose maker has not been heard of for that long."""
        query = select(PurgeOutbox.target).where(
            PurgeOutbox.kind == INGEST, PurgeOutbox.created_at < func.now() - older_than
        )
        async with transaction(self._engine) as connection:
            targets = (await connection.execute(query.limit(100))).scalars().all()
        ids = [tuple(UUID(part) for part in target.split("/")) for target in targets]
        return [BegunVersion(document_id, version_id, 0, document_id, False) for document_id, version_id in ids]

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

    async def delete_document(self, principal: Principal, filename: str, document_id: UUID | None) -> int:
        """Removes a document and hands its versions to the purge; the number of leaves that answered till now.

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
        return current.chunk_count if current is not None else 0

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
