"""A library in memory that cuts, embeds and searches as the real one does."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from uuid import UUID

from backend.infra.analyze import analyze, analyze_query
from backend.infra.embedding import Embedder
from backend.knowledge.chunk import NewChunk, chunk_pages
from backend.knowledge.index.base import IndexHit, IndexRow
from backend.knowledge.index.memory import MemoryChunkIndex
from backend.knowledge.parse import Page
from tests.rag.library import FoundPieces, StoredPiece, identify

NOBODY = UUID(int=0)


class IndexedLibrary:
    """Texts by file name, each a document without pages."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._index = MemoryChunkIndex(embedder.dimensions)
        self._pieces: dict[UUID, StoredPiece] = {}

    async def add(self, documents: Mapping[str, str]) -> None:
        for filename, text in documents.items():
            made = chunk_pages([Page(None, text)], identify(filename), self._embedder.count_tokens)
            self._pieces |= {chunk.id: _stored(chunk, filename) for chunk in made}
            leaves = [chunk for chunk in made if chunk.level == 3]
            vectors = await self._embedder.embed_passages([leaf.indexed_text for leaf in leaves])
            await self._index.add(
                [
                    IndexRow(leaf.id, identify(filename), None, True, analyze(leaf.indexed_text), vector)
                    for leaf, vector in zip(leaves, vectors, strict=True)
                ]
            )

    async def recall(
        self, user_id: UUID, query: str, limit: int, level: int = 3, *, collections: Collection[UUID] | None = None
    ) -> FoundPieces:
        words = analyze_query(query)
        if not words:
            return FoundPieces([])
        vector = await self._embedder.embed_query(query)
        found = await self._index.search(vector, words, limit=limit, user_id=NOBODY)
        return FoundPieces([self._recalled(hit) for hit in found.hits], found.mode)

    def _recalled(self, hit: IndexHit) -> StoredPiece:
        found = {"score": hit.score, "rank": hit.rank, "similarity": hit.similarity, "arms": hit.arms}
        return replace(self._pieces[hit.chunk_id], **found)

    async def chunks(self, user_id: UUID, ids: list[UUID]) -> dict[UUID, StoredPiece]:
        return {chunk_id: self._pieces[chunk_id] for chunk_id in ids if chunk_id in self._pieces}

    async def has_documents(self, user_id: UUID) -> bool:
        return bool(self._pieces)


def _stored(chunk: NewChunk, filename: str) -> StoredPiece:
    return StoredPiece(
        chunk_id=chunk.id,
        text=chunk.text,
        level=chunk.level,
        parent_id=chunk.parent_id,
        root_id=chunk.root_id,
        filename=filename,
        page_number=chunk.page_number,
        heading=chunk.heading,
        document_id=identify(filename),
        ordinal=chunk.ordinal,
    )
