"""The index made anew from Postgres, beside the one that answers, and put in its place."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from backend.infra.analyze import analyze
from backend.infra.embedding import Embedder
from backend.knowledge.chunk import indexed_text
from backend.knowledge.index.base import IndexRebuild, IndexRow
from backend.knowledge.library import AnsweringVersion, Library, StoredLeaf

logger = logging.getLogger(__name__)

BATCH = 64
"""Leaves that are read, embedded and added at once; a killed rebuild loses the work of one batch at most."""

Report = Callable[[int, int], None]
"""Is told how many leaves are in the new index, and of how many."""


@dataclass(frozen=True, slots=True)
class Reindexed:
    """What the new index holds; ``embedded`` leaves were made by this run, the others by one that was killed."""

    documents: int
    leaves: int
    embedded: int


@dataclass(frozen=True, slots=True)
class Compared:
    """The leaves that PostgreSQL holds of versions that answer, how many of them the index lacks, and how many it
    has beyond them. Leaves are counted by version, not looked up one by one."""

    leaves: int
    missing: int
    unknown: int

    @property
    def equal(self) -> bool:
        """Whether the index holds what it should and nothing else."""
        return self.missing == self.unknown == 0


class Reindex:
    """Owns neither engine nor embedder nor rebuild; who made them closes them."""

    def __init__(self, engine: AsyncEngine, rebuild: IndexRebuild, embedder: Embedder) -> None:
        self._library = Library(engine)
        self._rebuild = rebuild
        self._embedder = embedder
        self._embedded = 0

    async def run(self, report: Report) -> Reindexed:
        """Fills the new index and publishes it. Until then the old one answers; killed, the next run goes on.

        What is uploaded meanwhile is in the new index too: what was published before the swap is looked up again
        after it, and who publishes later sees the swap and adds it there (``ingest.py``). Raises
        :class:`ProviderError` and :class:`StorageUnavailable`.
        """
        versions = await self._fill(report)
        await self._rebuild.publish()
        versions = await self._fill(_silent)
        return Reindexed(len(versions), sum(version.leaves for version in versions), self._embedded)

    async def compare(self) -> Compared:
        """What the index holds against what it should. What is uploaded or deleted meanwhile may count as wrong."""
        held = await self._rebuild.index.versions()
        versions = await self._library.answering_versions()
        known = await self._library.known_versions()
        missing = sum(max(0, version.leaves - held.get(version.version_id, 0)) for version in versions)
        unknown = sum(count for version_id, count in held.items() if version_id not in known)
        unknown += sum(max(0, held.get(version.version_id, 0) - version.leaves) for version in versions)
        return Compared(sum(version.leaves for version in versions), missing, unknown)

    async def _fill(self, report: Report) -> list[AnsweringVersion]:
        """Makes the new index hold the leaves of every version that answers, and none of versions that are gone."""
        held = await self._rebuild.index.versions()
        versions = await self._library.answering_versions()
        await self._remove_unknown(held)
        total, done = sum(version.leaves for version in versions), 0
        for version in versions:
            if held.get(version.version_id, 0) > version.leaves:  # which of them are wrong the index cannot tell
                await self._rebuild.index.delete_version(version.version_id)
            if held.get(version.version_id, 0) != version.leaves:
                await self._fill_version(version, lambda added, done=done: report(done + added, total))
            done += version.leaves
            report(done, total)
        return versions

    async def _remove_unknown(self, held: Mapping[UUID, int]) -> None:
        for version_id in held.keys() - await self._library.known_versions():
            await self._rebuild.index.delete_version(version_id)

    async def _fill_version(self, version: AnsweringVersion, added: Callable[[int], None]) -> None:
        after: int | None = None
        count = 0
        while leaves := await self._library.leaves(version.version_id, after, BATCH):
            missing = await self._rebuild.index.missing([leaf.chunk_id for leaf in leaves])
            await self._add(version, [leaf for leaf in leaves if leaf.chunk_id in missing])
            after = leaves[-1].ordinal
            count += len(leaves)
            added(count)

    async def _add(self, version: AnsweringVersion, leaves: list[StoredLeaf]) -> None:
        if not leaves:
            return
        texts = [indexed_text(leaf.heading, leaf.text) for leaf in leaves]
        vectors = await self._embedder.embed_passages(texts)
        words = await asyncio.to_thread(lambda: [analyze(text) for text in texts])
        await self._rebuild.index.add(
            [
                IndexRow(leaf.chunk_id, version.version_id, version.owner_id, version.shared, leaf_words, vector)
                for leaf, leaf_words, vector in zip(leaves, words, vectors, strict=True)
            ]
        )
        self._embedded += len(leaves)


def _silent(done: int, total: int) -> None:
    return None
