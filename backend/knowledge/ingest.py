"""A file to a version that answers: original kept, parsed, cut, embedded, indexed, published in one transaction.

Until the last step the old version answers. Whatever goes wrong, the version is taken back and what it left is purged;
when the process dies the sweeper does it.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from backend.errors import AppError, StorageUnavailable
from backend.infra.analyze import analyze
from backend.infra.embedding import Embedder
from backend.infra.files import document_path, write_atomic
from backend.knowledge.chunk import NewChunk, chunk_pages
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex, IndexRow
from backend.knowledge.parse import ParsedDocument, parse_document
from backend.knowledge.repository import BegunVersion, KnowledgeRepository

logger = logging.getLogger(__name__)

RENEW_SECONDS = 10.0
DEAD_AFTER_SECONDS = 45.0
"""A version whose maker is silent for longer is given up; more than four renewals."""
PARALLEL = 2
"""Files that are read and embedded at once, of all users of this process."""
EMBED_BATCH = 128


class Ingest:
    """Makes versions; bounded to ``PARALLEL`` at a time."""

    def __init__(
        self,
        repository: KnowledgeRepository,
        index: ChunkIndex,
        embedder: Embedder,
        config: KnowledgeConfig,
        data_dir: Path,
    ) -> None:
        self._repository = repository
        self._index = index
        self._embedder = embedder
        self._config = config
        self._data_dir = data_dir
        self._slots = asyncio.Semaphore(PARALLEL)

    async def make(self, begun: BegunVersion, file_type: str, content: bytes | Path) -> int:
        """Makes the begun version answer; the number of its leaves. On any failure the version is taken back first.

        Raises the errors of the parser, the embedder and the stores, and :class:`NotFound` when the document
        was deleted meanwhile.
        """
        try:
            async with self._alive(begun), self._slots:
                return await self._make(begun, file_type, content)
        except BaseException as error:
            await asyncio.shield(self._take_back(begun, error.code if isinstance(error, AppError) else None))
            raise

    async def _make(self, begun: BegunVersion, file_type: str, content: bytes | Path) -> int:
        path = document_path(self._data_dir, begun.document_id, begun.version_id)
        await asyncio.to_thread(write_atomic, path, content)
        parsed = await parse_document(path, file_type, self._config)
        chunks = await asyncio.to_thread(self._cut, parsed, begun)
        leaves = [chunk for chunk in chunks if chunk.level == 3]
        generation = await self._index.generation()
        await self._add(begun, leaves)
        if await self._repository.publish(begun, chunks, parsed.total_pages):
            await self._add_to_rebuilt(begun, leaves, generation)
        else:
            await self._take_back(begun, None)
        return len(leaves)

    async def _add_to_rebuilt(self, begun: BegunVersion, leaves: Sequence[NewChunk], generation: str) -> None:
        """Once more when the index was replaced meanwhile: a rebuild fills in what was published before its swap,
        and looked up after it; what is published later is added here."""
        try:
            if await self._index.generation() != generation:
                await self._add(begun, leaves)
        except AppError as error:  # the version answers already, in part
            logger.warning("version %s is not in the rebuilt index (%s); reindex", begun.version_id, error.code)

    def _cut(self, parsed: ParsedDocument, begun: BegunVersion) -> list[NewChunk]:
        return chunk_pages(parsed.pages, begun.version_id, self._embedder.count_tokens)

    async def _add(self, begun: BegunVersion, leaves: Sequence[NewChunk]) -> None:
        for start in range(0, len(leaves), EMBED_BATCH):
            batch = leaves[start : start + EMBED_BATCH]
            texts = [leaf.indexed_text for leaf in batch]
            vectors = await self._embedder.embed_passages(texts)
            words = await asyncio.to_thread(_analyze_all, texts)
            rows = [
                IndexRow(leaf.id, begun.version_id, begun.owner_id, begun.shared, leaf_words, vector)
                for leaf, leaf_words, vector in zip(batch, words, vectors, strict=True)
            ]
            await self._index.add(rows)

    @asynccontextmanager
    async def _alive(self, begun: BegunVersion) -> AsyncGenerator[None]:
        """Renews the version's row in the outbox as long as the block runs."""
        task = asyncio.create_task(self._renew(begun), name=f"renew-{begun.version_id}")
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _renew(self, begun: BegunVersion) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._repository.renew(begun)
            except StorageUnavailable:
                logger.warning("version %s could not be renewed", begun.version_id)

    async def _take_back(self, begun: BegunVersion, code: str | None) -> None:
        try:
            await self._repository.abandon(begun, code)
        except StorageUnavailable:  # the sweeper finds it by its age
            logger.warning("version %s is left to the sweeper", begun.version_id)


def _analyze_all(texts: Sequence[str]) -> list[str]:
    return [analyze(text) for text in texts]
