"""The documents of an install: upload, list, delete, recall. The only door to this room."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from backend.errors import ProviderError
from backend.infra.analyze import analyze_query
from backend.infra.embedding import Embedder
from backend.knowledge.batch import BatchUploads
from backend.knowledge.collection import Collections
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.document_reader import DocumentReader
from backend.knowledge.index.base import Arm, ChunkIndex, IndexHit, Mode
from backend.knowledge.job_desk import Content, DeleteResult, JobDesk, UploadResult
from backend.knowledge.library import Library, StoredChunk
from backend.knowledge.purge import ORPHAN_SECONDS, Purger
from backend.knowledge.repository import KnowledgeRepository
from backend.schemas.auth import Principal
from backend.schemas.documents import DocumentInfo, Visibility
from backend.text import both_ends, clean_text
from backend.tracing import stage

logger = logging.getLogger(__name__)

MAX_QUERY_CHARS, MAX_QUERY_TOKENS = 8_000, 1_024
"""Of a longer query both ends count: up to the first for the words, up to the second for the vector, which costs time
by length (some 0.5 ms a token). Both are more than the window of an embedder, which pools its windows."""


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
        self._purger = Purger(self._repository, index, data_dir)
        self.jobs = JobDesk(engine, self._repository, self._library, index, embedder, config, data_dir, self._purger)
        self.batches = BatchUploads(self.jobs, config)

    # --- library ------------------------------------------------------------------------------------------------

    async def upload(
        self, principal: Principal, filename: str, content: Content, visibility: Visibility | None = None
    ) -> UploadResult:
        """Stores a document and returns when it answers; as :meth:`JobDesk.upload`."""
        return await self.jobs.upload(principal, filename, content, visibility)

    async def add_sample(self, path: Path) -> UploadResult:
        """Stores a document that came with the install: shared, owned by nobody. Raises as :meth:`upload` does."""
        return await self.jobs.add_sample(path)

    async def list_documents(self, principal: Principal) -> list[DocumentInfo]:
        """The shared documents and the principal's own, newest first."""
        return await self._library.list_documents(principal.id)

    async def list_collected(self, principal: Principal, collection_id: UUID) -> list[DocumentInfo]:
        """The documents of a collection, newest first. Raises :class:`NotFound`."""
        held = await self.collections.document_ids(principal.id, collection_id)
        return [one for one in await self._library.list_documents(principal.id) if one.document_id in held]

    async def delete(self, principal: Principal, filename: str, document_id: UUID | None = None) -> DeleteResult:
        """Removes a document; as :meth:`JobDesk.delete`."""
        return await self.jobs.delete(principal, filename, document_id)

    async def release_owner(self, user_id: UUID, limit: int = 100) -> int:
        """For an account that goes: removes ``limit`` of its private documents as :meth:`delete` does; how many.

        0 when none is left; its shared documents belong to the install then.
        """
        removed = await self._repository.release_owner(user_id, limit)
        await asyncio.shield(self._purger.soon())
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

    async def recover(self, *, dead_after_seconds: float = ORPHAN_SECONDS) -> None:
        """Takes back the versions of that age which no job makes any more."""
        await self._purger.recover(dead_after_seconds)

    async def sweep(self) -> None:
        """Takes back what is left over, purges until the outbox is empty or something cannot be purged."""
        await self.recover()
        await self._purger.all()
        await self.jobs.forget()

    async def optimize(self) -> None:
        """Folds what was added since into the index, if that is due. It may take minutes; nothing waits for it."""
        await self._index.optimize()


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
