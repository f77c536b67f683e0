"""The documents of an install: upload, list, delete, recall. The only door to this room."""

import asyncio
import hashlib
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from uuid import UUID
from weakref import WeakValueDictionary

from sqlalchemy.ext.asyncio import AsyncEngine

from backend.errors import DocumentError, Forbidden, ProviderError, StorageUnavailable, TooLarge, ValidationFailed
from backend.infra.analyze import analyze_query
from backend.infra.embedding import Embedder
from backend.infra.files import remove_document
from backend.knowledge.collection import Collections
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.document_reader import DocumentReader
from backend.knowledge.index.base import Arm, ChunkIndex, IndexHit, Mode
from backend.knowledge.ingest import DEAD_AFTER_SECONDS, Ingest
from backend.knowledge.library import Library, StoredChunk
from backend.knowledge.parse import file_type_of
from backend.knowledge.repository import KnowledgeRepository, Purge, Unchanged, Upload
from backend.metrics import counted_upload
from backend.schemas.auth import Principal
from backend.schemas.documents import DocumentInfo, Visibility
from backend.text import both_ends, clean_text
from backend.tracing import stage

logger = logging.getLogger(__name__)

MAX_FILENAME_BYTES = 255
MAX_QUERY_CHARS, MAX_QUERY_TOKENS = 8_000, 1_024
"""Of a longer query both ends count: up to the first for the words, up to the second for the vector, which costs time
by length (some 0.5 ms a token). Both are more than the window of an embedder, which pools its windows."""
PURGE_SECONDS = 5.0
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class UploadResult:
    """``filename`` is the name that was stored; ``chunks_processed`` counts leaves."""

    filename: str
    chunks_processed: int
    document_id: UUID


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """``chunks_deleted`` counts leaves."""

    filename: str
    chunks_deleted: int


@dataclass(frozen=True, slots=True)
class RecalledChunk(StoredChunk):
    """A live chunk that a query found. ``rank`` counts from 1; ``arms`` has its rank in each arm that found it.

    ``similarity`` is its cosine to the query, ``None`` when the dense arm did not find it.
    """

    score: float
    rank: int
    arms: Mapping[Arm, int]
    similarity: float | None


@dataclass(frozen=True, slots=True)
class Recall:
    """Best first. ``mode`` says which arms answered."""

    hits: list[RecalledChunk]
    mode: Mode


def clean_filename(filename: str) -> str:
    """The last part of ``filename`` (of either kind of slash) without control characters, 255 bytes at most (H07).

    Raises :class:`ValidationFailed` when nothing is left.
    """
    name = _CONTROL.sub("", clean_text(filename)).replace("\\", "/").rpartition("/")[2].strip()
    stem, dot, extension = name.rpartition(".")
    if name in {"", ".", ".."}:
        raise ValidationFailed(errors=[{"loc": ["file"], "msg": "a file name is required"}])
    if len(name.encode()) <= MAX_FILENAME_BYTES:
        return name
    tail = (dot + extension).encode()[:32].decode(errors="ignore") if stem else ""
    head = (stem or name).encode()[: MAX_FILENAME_BYTES - len(tail.encode())]
    return head.decode(errors="ignore") + tail


class KnowledgeBase:
    """Owns neither engine nor index nor embedder; who made them closes them."""

    def __init__(
        self, engine: AsyncEngine, index: ChunkIndex, embedder: Embedder, config: KnowledgeConfig, data_dir: Path
    ) -> None:
        self._repository = KnowledgeRepository(engine)
        self._library = Library(engine)
        self.collections = Collections(engine)
        self.reader = DocumentReader(engine, data_dir)
        self._index = index
        self._embedder = embedder
        self._config = config
        self._data_dir = data_dir
        self._ingest = Ingest(self._repository, index, embedder, config, data_dir)
        self._names: WeakValueDictionary[tuple[object, ...], asyncio.Lock] = WeakValueDictionary()

    # --- library ------------------------------------------------------------------------------------------------

    async def upload(
        self, principal: Principal, filename: str, content: bytes | Path, visibility: Visibility | None = None
    ) -> UploadResult:
        """Stores a document, or the next version of the one with that name, and returns when it answers.

        ``visibility`` is ``shared`` for admins and ``private`` for users by default; a user asking for ``shared``
        is :class:`Forbidden`. The bytes of the current version again change nothing. Raises
        :class:`ValidationFailed` (name), :class:`TypeMismatch`, :class:`TooLarge`, :class:`DocumentError`,
        :class:`ProviderError`, :class:`StorageUnavailable`, :class:`NotFound` (deleted meanwhile).
        """
        with counted_upload():
            visibility = visibility or ("shared" if principal.role == "admin" else "private")
            if visibility == "shared" and principal.role != "admin":
                raise Forbidden()
            return await self._store(principal.id, visibility, clean_filename(filename), content)

    async def add_sample(self, path: Path) -> UploadResult:
        """Stores a document that came with the install: shared, owned by nobody. Raises as :meth:`upload` does."""
        return await self._store(None, "shared", path.name, path)

    async def _store(
        self, owner_id: UUID | None, visibility: Visibility, name: str, content: bytes | Path
    ) -> UploadResult:
        file_type = file_type_of(name)
        size, sha256 = await asyncio.to_thread(_measure, content, self._config.max_upload_bytes)
        upload = Upload(owner_id, visibility, name, file_type, sha256, size)
        # Uploads of one name take turns here; across processes the newest version wins when it is published.
        key = (name, visibility, owner_id if visibility == "private" else None)
        lock = self._names.setdefault(key, asyncio.Lock())
        async with lock:
            begun = await self._repository.begin(upload, self._config.max_bytes_per_user)
            if isinstance(begun, Unchanged):
                return UploadResult(name, begun.chunk_count, begun.document_id)
            try:
                leaves = await self._ingest.make(begun, file_type, content)
            finally:
                await asyncio.shield(self._purge())
        return UploadResult(name, leaves, begun.document_id)

    async def list_documents(self, principal: Principal) -> list[DocumentInfo]:
        """The shared documents and the principal's own, newest first."""
        return await self._library.list_documents(principal.id)

    async def list_collected(self, principal: Principal, collection_id: UUID) -> list[DocumentInfo]:
        """The documents of a collection, newest first. Raises :class:`NotFound`."""
        held = await self.collections.document_ids(principal.id, collection_id)
        return [one for one in await self._library.list_documents(principal.id) if one.document_id in held]

    async def delete(self, principal: Principal, filename: str, document_id: UUID | None = None) -> DeleteResult:
        """Removes a document: it is never recalled again, and its files and index rows go now or with the sweeper.

        The principal's own private document of that name first, then the shared one; ``document_id`` decides
        otherwise. Raises :class:`NotFound` (absent, or someone's private one) and :class:`Forbidden` (shared,
        and the principal is no admin).
        """
        name = clean_text(filename)
        leaves = await self._repository.delete_document(principal, name, document_id)
        await asyncio.shield(self._purge())
        return DeleteResult(name, leaves)

    async def release_owner(self, user_id: UUID, limit: int = 100) -> int:
        """For an account that goes: removes ``limit`` of its private documents as :meth:`delete` does; how many.

        0 when none is left; its shared documents belong to the install then.
        """
        removed = await self._repository.release_owner(user_id, limit)
        await asyncio.shield(self._purge())
        return removed

    # --- recall -------------------------------------------------------------------------------------------------

    async def recall(
        self,
        user_id: UUID,
        query: str,
        limit: int,
        level: int = 3,
        *,
        collections: Collection[UUID] | None = None,
        mode: Mode = "hybrid",
    ) -> Recall:
        """At most ``limit`` live chunks of ``level`` that match ``query``, best first.

        Only chunks of documents that are shared or the user's own, of the version that answers now. A query
        without a word that says anything (stop words, punctuation, emoji) finds nothing. When the embedder
        fails the words answer alone (``mode`` ``sparse``). Above level 3 a chunk stands for its best leaf, whose
        page it reports. With ``collections`` only documents of these collections of the user's. ``mode`` asks one arm
        alone, which serves measurements.
        """
        query = both_ends(clean_text(query), MAX_QUERY_CHARS)
        words = analyze_query(query)
        if not words:
            return Recall([], "hybrid")
        versions = None if collections is None else await self.collections.versions(user_id, collections)
        if versions is not None and not versions:
            return Recall([], "hybrid")
        vector = None if mode == "sparse" else await self._query_vector(query)
        asked = limit * 2 + 10  # the index may hold rows that are not live any more, or not yet
        while True:
            with stage("search"):
                asked_words = "" if mode == "dense" else words
                found = await self._index.search(vector, asked_words, limit=asked, user_id=user_id, versions=versions)
            with stage("load"):
                hits = await self._live(user_id, found.hits, level, versions)
            if len(hits) >= limit or len(found.hits) < asked or asked > limit * 32:
                return Recall(hits[:limit], found.mode)
            asked *= 4

    async def check_index(self) -> None:
        """Raises :class:`StorageUnavailable` when the index cannot be asked."""
        await self._index.search(None, "ready", limit=1, user_id=UUID(int=0))

    async def _query_vector(self, query: str) -> list[float] | None:
        try:
            with stage("embed"):
                tokens = self._embedder.count_tokens(query) if len(query) > MAX_QUERY_TOKENS else 0
                if tokens > MAX_QUERY_TOKENS:
                    query = both_ends(query, len(query) * MAX_QUERY_TOKENS // tokens)
                return await self._embedder.embed_query(query)
        except ProviderError as error:
            logger.warning("the query could not be embedded (%s)", error.code)
            return None

    async def _live(
        self, user_id: UUID, found: list[IndexHit], level: int, versions: Collection[UUID] | None
    ) -> list[RecalledChunk]:
        leaves = await self._library.chunks(user_id, [hit.chunk_id for hit in found], versions=versions)
        hits = [(hit, leaves[hit.chunk_id]) for hit in found if hit.chunk_id in leaves]
        if level < 3:
            hits = await self._raise_to(user_id, hits, level)
        return [_recalled(chunk, hit, rank) for rank, (hit, chunk) in enumerate(hits, start=1)]

    async def _raise_to(
        self, user_id: UUID, hits: list[tuple[IndexHit, StoredChunk]], level: int
    ) -> list[tuple[IndexHit, StoredChunk]]:
        """Each leaf's ancestor of that level once, where its best leaf stood."""
        best: dict[UUID, tuple[IndexHit, StoredChunk]] = {}
        for hit, leaf in hits:
            ancestor = leaf.parent_id if level == 2 else leaf.root_id
            if ancestor is not None:
                best.setdefault(ancestor, (hit, leaf))
        above = await self._library.chunks(user_id, best.keys())
        return [
            (hit, replace(above[ancestor], page_number=leaf.page_number))
            for ancestor, (hit, leaf) in best.items()
            if ancestor in above
        ]

    async def chunks(self, user_id: UUID, ids: Collection[UUID]) -> dict[UUID, StoredChunk]:
        """The live ones of ``ids`` that the user may see."""
        return await self._library.chunks(user_id, ids)

    async def existing(self, user_id: UUID, ids: Collection[UUID]) -> set[UUID]:
        """Those of ``ids`` that are documents which the user may see."""
        return await self._library.existing(user_id, ids)

    async def children_count(self, user_id: UUID, parent_ids: Collection[UUID]) -> dict[UUID, int]:
        """How many direct children each of the parents has, of those that are live and visible to the user."""
        return await self._library.children_count(user_id, parent_ids)

    async def has_documents(self, user_id: UUID) -> bool:
        """Whether any document could answer this user."""
        return await self._library.has_documents(user_id)

    # --- upkeep -------------------------------------------------------------------------------------------------

    async def recover(self, *, dead_after_seconds: float = DEAD_AFTER_SECONDS) -> None:
        """Takes back the versions whose maker has not shown itself for that long, because it is gone."""
        for begun in await self._repository.dead_ingests(timedelta(seconds=dead_after_seconds)):
            await self._repository.abandon(begun, None)
            logger.info("version %s was left unfinished and is taken back", begun.version_id)

    async def sweep(self) -> None:
        """Takes back what is dead, purges until the outbox is empty or something cannot be purged."""
        await self.recover()
        last: UUID | None = None
        while purges := await self._repository.purges(100, last):
            for purge in purges:
                await self._purge_one(purge)
                last = purge.id

    async def optimize(self) -> None:
        """Folds what was added since into the index, if that is due. It may take minutes; nothing waits for it."""
        await self._index.optimize()

    async def _purge(self) -> None:
        """Purges at once what can be; the rest is the sweeper's."""
        try:
            async with asyncio.timeout(PURGE_SECONDS):
                for purge in await self._repository.purges(20):
                    await self._purge_one(purge)
        except (StorageUnavailable, TimeoutError):
            logger.warning("purging is left to the sweeper")

    async def _purge_one(self, purge: Purge) -> None:
        try:
            await self._index.delete_version(purge.version_id)
            await asyncio.to_thread(remove_document, self._data_dir, purge.document_id, purge.version_id)
        except (StorageUnavailable, OSError) as error:
            logger.warning("version %s could not be purged yet", purge.version_id, exc_info=error)
            return
        await self._repository.purged(purge.id)


def _recalled(chunk: StoredChunk, hit: IndexHit, rank: int) -> RecalledChunk:
    return RecalledChunk(
        chunk_id=chunk.chunk_id,
        document_id=chunk.document_id,
        document_version=chunk.document_version,
        filename=chunk.filename,
        page_number=chunk.page_number,
        heading=chunk.heading,
        text=chunk.text,
        level=chunk.level,
        parent_id=chunk.parent_id,
        root_id=chunk.root_id,
        ordinal=chunk.ordinal,
        score=hit.score,
        rank=rank,
        arms=hit.arms,
        similarity=hit.similarity,
    )


def _measure(content: bytes | Path, max_bytes: int) -> tuple[int, str]:
    """Size and SHA-256 of the content; blocks. Raises :class:`TooLarge` or, for nothing at all, ``empty_document``."""
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    if size > max_bytes:
        raise TooLarge()
    if size == 0:
        raise DocumentError("empty_document")
    if isinstance(content, bytes):
        return size, hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return size, hashlib.file_digest(file, "sha256").hexdigest()
