"""The steps of an upload job: parsed, cut, chunks stored, leaves embedded and indexed, published in one transaction.

Until the last step the old version answers. Each step leaves what it made and says so in the job, so that after a kill
the next worker goes on from there: stored chunks are not cut again, and of the leaves one batch at most is embedded
twice. Every step may be done twice with the same result, as ids are made from the version and the position.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from backend.errors import AppError, DocumentError
from backend.infra.analyze import analyze
from backend.infra.embedding import Embedder
from backend.infra.files import document_path
from backend.knowledge.chunk import NewChunk, chunk_pages, indexed_text
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex, IndexRow
from backend.knowledge.job_repository import (
    CLEANUP,
    PARENT_STORE,
    PARSE,
    UPLOAD,
    VECTOR_STORE,
    JobRepository,
    Source,
    StoredJob,
)
from backend.knowledge.library import Library, StoredLeaf
from backend.knowledge.parse import ParsedDocument, parse_document
from backend.knowledge.repository import KnowledgeRepository

logger = logging.getLogger(__name__)

EMBED_BATCH = 64
"""Leaves between two marks of progress; a kill costs the embedding of so many at most."""


class Ingest:
    """Carries out upload jobs. Owns nothing that it is given."""

    def __init__(
        self,
        jobs: JobRepository,
        repository: KnowledgeRepository,
        library: Library,
        index: ChunkIndex,
        embedder: Embedder,
        config: KnowledgeConfig,
        data_dir: Path,
    ) -> None:
        self._jobs = jobs
        self._repository = repository
        self._library = library
        self._index = index
        self._embedder = embedder
        self._config = config
        self._data_dir = data_dir

    async def run(self, job: StoredJob) -> None:
        """Goes on with the job to its end. Taking the version back after a failure is the caller's.

        Raises the errors of the parser, the embedder and the stores, :class:`NotFound` when the document was
        deleted meanwhile, and :class:`JobLost`.
        """
        source = await self._jobs.source(job)
        done, total = job.processed_chunks, job.total_chunks
        if job.step != VECTOR_STORE:
            done, total = 0, await self._store_chunks(job, source)
        generation = await self._index.generation()
        if generation != job.generation:
            done = 0
        await self._add(job, source, done, total, generation)
        if await self._repository.publish(self._jobs, job, source):
            await self._add_to_rebuilt(source, generation)

    async def _store_chunks(self, job: StoredJob, source: Source) -> int:
        """Parses, cuts and stores; the number of leaves. Raises :class:`DocumentError` for a file that is not there,
        because it was not whole when its worker was killed."""
        path = document_path(self._data_dir, source.document_id, source.version_id)
        if job.step == UPLOAD and not await asyncio.to_thread(path.exists):
            raise DocumentError("parse_failed")
        await self._jobs.progress(job.id, CLEANUP, 0)
        await self._repository.drop_chunks(source.version_id)
        await self._jobs.progress(job.id, PARSE, 0)
        parsed = await parse_document(path, source.file_type, self._config)
        await self._jobs.progress(job.id, PARENT_STORE, 0, warnings=parsed.warnings)
        chunks = await asyncio.to_thread(self._cut, parsed, source.version_id)
        return await self._repository.store_chunks(self._jobs, job, source, chunks, parsed.total_pages)

    def _cut(self, parsed: ParsedDocument, version_id: UUID) -> list[NewChunk]:
        return chunk_pages(parsed.pages, version_id, self._embedder.count_tokens)

    async def _add(self, job: StoredJob, source: Source, done: int, total: int, generation: str) -> None:
        """Embeds and indexes the leaves from ordinal ``done`` on."""
        while leaves := await self._library.leaves(source.version_id, done - 1, EMBED_BATCH):
            await self._index.add(await self._rows(source, leaves))
            done = leaves[-1].ordinal + 1
            percent = min(99, done * 100 // max(1, total))
            await self._jobs.progress(
                job.id, VECTOR_STORE, percent, processed_chunks=done, generation=generation, total_chunks=total
            )

    async def _rows(self, source: Source, leaves: Sequence[StoredLeaf]) -> list[IndexRow]:
        texts = [indexed_text(leaf.heading, leaf.text) for leaf in leaves]
        vectors = await self._embedder.embed_passages(texts)
        words = await asyncio.to_thread(_analyze_all, texts)
        return [
            IndexRow(leaf.chunk_id, source.version_id, source.owner_id, source.shared, leaf_words, vector)
            for leaf, leaf_words, vector in zip(leaves, words, vectors, strict=True)
        ]

    async def _add_to_rebuilt(self, source: Source, generation: str) -> None:
        """Once more when the index was replaced meanwhile: a rebuild fills in what was published before its swap,
        and looked up after it; what is published later is added here."""
        try:
            if await self._index.generation() == generation:
                return
            after = -1
            while leaves := await self._library.leaves(source.version_id, after, EMBED_BATCH):
                await self._index.add(await self._rows(source, leaves))
                after = leaves[-1].ordinal
        except AppError as error:  # the version answers already, in part
            logger.warning("version %s is not in the rebuilt index (%s); reindex", source.version_id, error.code)


def _analyze_all(texts: Sequence[str]) -> list[str]:
    return [analyze(text) for text in texts]
