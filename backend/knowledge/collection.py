"""Collections: named sets of documents, each of one user, to ask about. One method is one transaction.

The owner predicate is in every statement: of the collection, and of the documents, which may be shared or the owner's.
"""

from collections.abc import Collection as Ids
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Select, and_, delete, exists, func, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from backend.errors import NameTaken, NotFound, TooLarge
from backend.infra.database.engine import transaction
from backend.infra.database.tables import Collection, CollectionDocument, Document, DocumentVersion, User
from backend.knowledge.library import live, visible
from backend.schemas.collection import MAX_COLLECTION_DOCUMENTS, CollectionInfo

MAX_COLLECTIONS = 200
"""Collections of one user."""


def in_collections(user_id: UUID, collection_ids: Ids[UUID]) -> ColumnElement[bool]:
    """Whether a document is in one of these collections of the user."""
    return (
        exists()
        .where(CollectionDocument.document_id == Document.id, CollectionDocument.collection_id == Collection.id)
        .where(Collection.owner_id == user_id, Collection.id.in_(collection_ids))
    )


class Collections:
    """Raises :class:`StorageUnavailable` when Postgres cannot be reached, :class:`NotFound` for another's too."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def create(self, user_id: UUID, name: str) -> CollectionInfo:
        """A new, empty one. Raises :class:`NameTaken`, and :class:`TooLarge` when the user has ``MAX_COLLECTIONS``."""
        async with transaction(self._engine) as connection:
            await connection.execute(select(User.id).where(User.id == user_id).with_for_update())
            count = select(func.count()).select_from(Collection).where(Collection.owner_id == user_id)
            if int((await connection.execute(count)).scalar_one()) >= MAX_COLLECTIONS:
                raise TooLarge()
            made = upsert(Collection).values(owner_id=user_id, name=name).on_conflict_do_nothing()
            collection_id = (await connection.execute(made.returning(Collection.id))).scalar_one_or_none()
            if collection_id is None:
                raise NameTaken()
            return await self._one(connection, user_id, collection_id)

    async def of_user(self, user_id: UUID) -> list[CollectionInfo]:
        """The user's, by name."""
        async with transaction(self._engine) as connection:
            rows = await connection.execute(_infos(user_id).order_by(Collection.name))
            return [_info(row) for row in rows]

    async def rename(self, user_id: UUID, collection_id: UUID, name: str) -> CollectionInfo:
        """Raises :class:`NotFound`, :class:`NameTaken`."""
        renamed = update(Collection).where(_own(user_id, collection_id)).values(name=name)
        try:
            async with transaction(self._engine) as connection:
                await connection.execute(renamed)
                return await self._one(connection, user_id, collection_id)
        except IntegrityError as error:
            raise NameTaken() from error

    async def delete(self, user_id: UUID, collection_id: UUID) -> None:
        """Its documents stay. Raises :class:`NotFound`."""
        async with transaction(self._engine) as connection:
            gone = await connection.execute(delete(Collection).where(_own(user_id, collection_id)))
            if gone.rowcount == 0:
                raise NotFound()

    async def add(self, user_id: UUID, collection_id: UUID, document_ids: Ids[UUID]) -> CollectionInfo:
        """Puts documents in; those that are in stay.

        Raises :class:`NotFound` when the collection or one of the documents is not the user's to see, with nothing
        changed, and :class:`TooLarge` above ``MAX_COLLECTION_DOCUMENTS``.
        """
        wanted = set(document_ids)
        async with transaction(self._engine) as connection:
            await self._lock(connection, user_id, collection_id)
            seen = select(Document.id).where(Document.id.in_(wanted), visible(user_id)).with_for_update(key_share=True)
            if len((await connection.execute(seen)).all()) < len(wanted):
                raise NotFound()
            rows = [{"collection_id": collection_id, "document_id": document_id} for document_id in wanted]
            await connection.execute(upsert(CollectionDocument).on_conflict_do_nothing(), rows)
            held = select(func.count()).where(CollectionDocument.collection_id == collection_id)
            if int((await connection.execute(held)).scalar_one()) > MAX_COLLECTION_DOCUMENTS:
                raise TooLarge()
            return await self._one(connection, user_id, collection_id)

    async def remove(self, user_id: UUID, collection_id: UUID, document_id: UUID) -> CollectionInfo:
        """Takes a document out. Raises :class:`NotFound` when it is not in."""
        async with transaction(self._engine) as connection:
            await self._lock(connection, user_id, collection_id)
            held = and_(
                CollectionDocument.collection_id == collection_id,
                CollectionDocument.document_id == document_id,
                CollectionDocument.document_id.in_(select(Document.id).where(visible(user_id))),
            )
            gone = await connection.execute(delete(CollectionDocument).where(held))
            if gone.rowcount == 0:
                raise NotFound()
            return await self._one(connection, user_id, collection_id)

    async def find(self, user_id: UUID, names: Sequence[str]) -> list[UUID]:
        """The user's collections of these names or ids. Raises :class:`NotFound` when one of them is unknown."""
        ids = {name: parsed for name in names if (parsed := _uuid(name)) is not None}
        query = select(Collection.id, Collection.name).where(
            Collection.owner_id == user_id, Collection.name.in_(names) | Collection.id.in_(ids.values())
        )
        async with transaction(self._engine) as connection:
            rows = (await connection.execute(query)).all()
        by_name, found = {row.name: row.id for row in rows}, {row.id for row in rows}
        chosen = [by_name.get(name, ids.get(name)) for name in names]
        if not found.issuperset(chosen):
            raise NotFound()
        return list(dict.fromkeys(one for one in chosen if one is not None))

    async def versions(self, user_id: UUID, collection_ids: Ids[UUID]) -> set[UUID]:
        """The versions that answer of the documents in these collections, of those that the user may see."""
        query = (
            select(DocumentVersion.id)
            .join(Document, Document.current_version_id == DocumentVersion.id)
            .where(live(user_id), in_collections(user_id, collection_ids))
        )
        async with transaction(self._engine) as connection:
            return set((await connection.execute(query)).scalars())

    async def document_ids(self, user_id: UUID, collection_id: UUID) -> set[UUID]:
        """The documents in it that the user may see. Raises :class:`NotFound`."""
        query = select(Document.id).where(visible(user_id), in_collections(user_id, [collection_id]))
        async with transaction(self._engine) as connection:
            await self._one(connection, user_id, collection_id)
            return set((await connection.execute(query)).scalars())

    async def _lock(self, connection: AsyncConnection, user_id: UUID, collection_id: UUID) -> None:
        query = select(Collection.id).where(_own(user_id, collection_id)).with_for_update()
        if (await connection.execute(query)).first() is None:
            raise NotFound()

    async def _one(self, connection: AsyncConnection, user_id: UUID, collection_id: UUID) -> CollectionInfo:
        row = (await connection.execute(_infos(user_id, Collection.id == collection_id))).first()
        if row is None:
            raise NotFound()
        return _info(row)


def _own(user_id: UUID, collection_id: UUID) -> ColumnElement[bool]:
    return and_(Collection.owner_id == user_id, Collection.id == collection_id)


def _infos(user_id: UUID, *which: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    held = (
        select(func.count())
        .select_from(CollectionDocument)
        .join(Document, Document.id == CollectionDocument.document_id)
        .where(CollectionDocument.collection_id == Collection.id, visible(user_id))
        .scalar_subquery()
    )
    columns = (Collection.id, Collection.name, Collection.created_at, held.label("held"))
    return select(*columns).where(Collection.owner_id == user_id, *which)


def _info(row: Row[Any]) -> CollectionInfo:
    return CollectionInfo(collection_id=row.id, name=row.name, document_count=row.held, created_at=row.created_at)


def _uuid(value: str) -> UUID | None:
    try:
        return UUID(value)
    except ValueError:
        return None
