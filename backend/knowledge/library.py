"""What is read of the documents in Postgres: the library of a user, live chunks, and what the index is made from.

Every query for a user has the owner predicate in it (J03).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from sqlalchemy import ColumnElement, Row, and_, exists, func, or_, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.infra.database.engine import transaction
from backend.infra.database.tables import Chunk, Document, DocumentVersion
from backend.schemas.documents import DocumentInfo, DocumentStatus, Visibility


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A live chunk. ``ordinal`` counts within level and version; ``document_version`` from 1."""

    chunk_id: UUID
    document_id: UUID
    document_version: int
    filename: str
    page_number: int | None
    heading: str | None
    text: str
    level: int
    parent_id: UUID | None
    root_id: UUID | None
    ordinal: int


@dataclass(frozen=True, slots=True)
class AnsweringVersion:
    """The version of a document that answers. ``leaves`` counts those in Postgres."""

    version_id: UUID
    owner_id: UUID | None
    shared: bool
    leaves: int


@dataclass(frozen=True, slots=True)
class StoredLeaf:
    """What the index needs of a leaf. ``ordinal`` counts within the version."""

    chunk_id: UUID
    ordinal: int
    heading: str | None
    text: str


def visible(user_id: UUID) -> ColumnElement[bool]:
    """The owner predicate: shared or one's own (J03)."""
    return or_(Document.visibility == "shared", Document.owner_id == user_id)


def live(user_id: UUID) -> ColumnElement[bool]:
    """Of a version that is whole, and visible; to be joined with the document's current version."""
    return and_(DocumentVersion.status == "ready", visible(user_id))


class Library:
    """One method is one transaction. Raises :class:`StorageUnavailable` when Postgres cannot be reached."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    # --- the library --------------------------------------------------------------------------------------------

    async def list_documents(self, user_id: UUID) -> list[DocumentInfo]:
        """Shared documents and one's own, newest first, each with the version that answers, else the newest one."""
        shown = (
            select(DocumentVersion.__table__)
            .where(DocumentVersion.document_id == Document.id)
            .order_by((DocumentVersion.id == Document.current_version_id).desc().nulls_last())
            .order_by(DocumentVersion.version.desc())
            .limit(1)
            .lateral("shown")
        )
        query = (
            select(
                Document.__table__, shown.c.chunk_count, shown.c.status, shown.c.pages, shown.c.created_at.label("at")
            )
            .join(shown, text("true"))
            .where(visible(user_id))
            .order_by(shown.c.created_at.desc(), Document.id.desc())
        )
        async with transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
        return [
            DocumentInfo(
                filename=row.filename,
                file_type=row.file_type,
                chunk_count=row.chunk_count,
                uploaded_at=row.at,
                document_id=row.id,
                visibility=cast(Visibility, row.visibility),
                status=cast(DocumentStatus, row.status),
                pages=row.pages,
            )
            for row in rows
        ]

    async def has_documents(self, user_id: UUID) -> bool:
        """Whether anything could answer this user."""
        ready = exists().where(Document.current_version_id == DocumentVersion.id, live(user_id))
        async with transaction(self._engine) as connection:
            return bool((await connection.execute(select(ready))).scalar_one())

    async def existing(self, user_id: UUID, ids: Collection[UUID]) -> set[UUID]:
        """Those of ``ids`` that are documents which the user may see."""
        query = select(Document.id).where(Document.id.in_(ids), visible(user_id))
        async with transaction(self._engine) as connection:
            return set((await connection.execute(query)).scalars())

    async def chunks(
        self, user_id: UUID, ids: Collection[UUID], *, versions: Collection[UUID] | None = None
    ) -> dict[UUID, StoredChunk]:
        """The live ones of ``ids``: of the version that answers, of documents that are shared or the user's own.

        With ``versions`` those of these only.
        """
        if not ids:
            return {}
        query = (
            select(Chunk.__table__, Document.id.label("document_id"), Document.filename, DocumentVersion.version)
            .join(DocumentVersion, DocumentVersion.id == Chunk.version_id)
            .join(Document, Document.current_version_id == DocumentVersion.id)
            .where(Chunk.id.in_(ids), live(user_id))
        )
        if versions is not None:
            query = query.where(Chunk.version_id.in_(versions))
        async with transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
        return {row.id: _stored(row) for row in rows}

    # --- what the index is made from ----------------------------------------------------------------------------

    async def answering_versions(self) -> list[AnsweringVersion]:
        """Every version that answers, oldest first."""
        query = (
            select(DocumentVersion.id, Document.owner_id, Document.visibility, DocumentVersion.chunk_count)
            .join(Document, Document.current_version_id == DocumentVersion.id)
            .where(DocumentVersion.status == "ready")
            .order_by(DocumentVersion.id)
        )
        async with transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
        return [AnsweringVersion(row.id, row.owner_id, row.visibility == "shared", row.chunk_count) for row in rows]

    async def known_versions(self) -> set[UUID]:
        """Every version there is, in the making too."""
        async with transaction(self._engine) as connection:
            return set((await connection.execute(select(DocumentVersion.id))).scalars())

    async def leaves(self, version_id: UUID, after: int | None, limit: int) -> list[StoredLeaf]:
        """The next ``limit`` leaves of a version, by ordinal, above ``after``."""
        query = select(Chunk.__table__).where(Chunk.version_id == version_id, Chunk.level == 3)
        if after is not None:
            query = query.where(Chunk.ordinal > after)
        async with transaction(self._engine) as connection:
            rows = (await connection.execute(query.order_by(Chunk.ordinal).limit(limit))).all()
        return [StoredLeaf(row.id, row.ordinal, row.heading, row.text) for row in rows]

    async def children_count(self, user_id: UUID, parent_ids: Collection[UUID]) -> dict[UUID, int]:
        """How many direct children each live parent has."""
        if not parent_ids:
            return {}
        query = (
            select(Chunk.parent_id, func.count())
            .join(DocumentVersion, DocumentVersion.id == Chunk.version_id)
            .join(Document, Document.current_version_id == DocumentVersion.id)
            .where(Chunk.parent_id.in_(parent_ids), live(user_id))
            .group_by(Chunk.parent_id)
        )
        async with transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
        return {parent_id: count for parent_id, count in rows if parent_id is not None}


def _stored(row: Row[Any]) -> StoredChunk:
    return StoredChunk(
        chunk_id=row.id,
        document_id=row.document_id,
        document_version=row.version,
        filename=row.filename,
        page_number=row.page_number,
        heading=row.heading,
        text=row.text,
        level=row.level,
        parent_id=row.parent_id,
        root_id=row.root_id,
        ordinal=row.ordinal,
    )
