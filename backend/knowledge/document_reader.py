"""What is read of one document: a passage with what stands around it, a page, the original. Owner-checked, bounded."""

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import UUID

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from backend.errors import NotFound
from backend.infra.database.engine import transaction
from backend.infra.database.tables import Chunk, Document, DocumentVersion
from backend.infra.files import document_path
from backend.knowledge.library import live
from backend.schemas.reading import DocumentPage, DocumentPassage

MAX_PAGE_CHARS, MAX_PAGE_PARTS = 200_000, 1_000


@dataclass(frozen=True, slots=True)
class Original:
    """The bytes that were uploaded, to be closed by who asked. ``size`` is in bytes."""

    filename: str
    size: int
    content: BinaryIO


class DocumentReader:
    """Reads the version that answers, for users who may see the document; anything else is :class:`NotFound`."""

    def __init__(self, engine: AsyncEngine, data_dir: Path) -> None:
        self._engine = engine
        self._data_dir = data_dir

    async def passage(self, user_id: UUID, document_id: UUID, chunk_id: UUID) -> DocumentPassage:
        """A chunk of any level, with the one before and the one after it of the same level."""
        query = (
            select(Chunk.__table__, Document.filename, DocumentVersion.version)
            .join(DocumentVersion, DocumentVersion.id == Chunk.version_id)
            .join(Document, Document.current_version_id == DocumentVersion.id)
            .where(Chunk.id == chunk_id, Document.id == document_id, live(user_id))
        )
        async with transaction(self._engine) as connection:
            found = (await connection.execute(query)).first()
            if found is None:
                raise NotFound()
            around = await self._around(connection, found.version_id, found.level, found.ordinal)
        return DocumentPassage(
            document_id=document_id,
            document_version=found.version,
            chunk_id=chunk_id,
            filename=found.filename,
            page_number=found.page_number,
            heading=found.heading,
            level=found.level,
            text=found.text,
            before=around.get(found.ordinal - 1),
            after=around.get(found.ordinal + 1),
        )

    async def _around(self, connection: AsyncConnection, version_id: UUID, level: int, ordinal: int) -> dict[int, str]:
        query = select(Chunk.ordinal, Chunk.text).where(
            Chunk.version_id == version_id, Chunk.level == level, Chunk.ordinal.in_([ordinal - 1, ordinal + 1])
        )
        return {row.ordinal: row.text for row in await connection.execute(query)}

    async def page(self, user_id: UUID, document_id: UUID, number: int) -> DocumentPage:
        """The text of a page, from 1; ``MAX_PAGE_CHARS`` of it at most. A format without pages has the one page."""
        paged = (
            (Chunk.page_number == number)
            if number > 1
            else or_(Chunk.page_number == 1, DocumentVersion.pages.is_(None))
        )
        query = (
            select(Chunk.text, Document.filename, DocumentVersion.version, DocumentVersion.pages)
            .join(DocumentVersion, DocumentVersion.id == Chunk.version_id)
            .join(Document, Document.current_version_id == DocumentVersion.id)
            .where(Document.id == document_id, live(user_id), Chunk.level == 1, paged)
            .order_by(Chunk.ordinal)
            .limit(MAX_PAGE_PARTS)
        )
        async with transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
        if not rows:
            return await self._blank_page(user_id, document_id, number)
        text = "\n\n".join(row.text for row in rows)
        return DocumentPage(
            document_id=document_id,
            document_version=rows[0].version,
            filename=rows[0].filename,
            page_number=number,
            pages=rows[0].pages,
            text=text[:MAX_PAGE_CHARS],
            truncated=len(text) > MAX_PAGE_CHARS or len(rows) == MAX_PAGE_PARTS,
        )

    async def _blank_page(self, user_id: UUID, document_id: UUID, number: int) -> DocumentPage:
        """A page without text, which a document may have."""
        query = (
            select(Document.filename, DocumentVersion.version, DocumentVersion.pages)
            .join(DocumentVersion, DocumentVersion.id == Document.current_version_id)
            .where(Document.id == document_id, live(user_id), DocumentVersion.pages >= number)
        )
        async with transaction(self._engine) as connection:
            found = (await connection.execute(query)).first()
        if found is None:
            raise NotFound()
        return DocumentPage(
            document_id=document_id,
            document_version=found.version,
            filename=found.filename,
            page_number=number,
            pages=found.pages,
            text="",
            truncated=False,
        )

    async def find_original(self, user_id: UUID, document_id: UUID) -> tuple[str, Path]:
        """Name of the document and where its original lies."""
        query = (
            select(Document.filename, DocumentVersion.id)
            .join(DocumentVersion, DocumentVersion.id == Document.current_version_id)
            .where(Document.id == document_id, live(user_id))
        )
        async with transaction(self._engine) as connection:
            found = (await connection.execute(query)).first()
        if found is None:
            raise NotFound()
        return found.filename, document_path(self._data_dir, document_id, found.id)


def open_original(filename: str, path: Path) -> Original:
    """Opens it; blocks. Raises :class:`NotFound` when it went meanwhile."""
    try:
        content = path.open("rb")
    except FileNotFoundError as error:
        raise NotFound() from error
    return Original(filename, path.stat().st_size, content)
