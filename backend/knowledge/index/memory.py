"""The chunk index in memory, without files: the shortest form of what every adapter does."""

import math
from collections import Counter
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from backend.knowledge.index.base import ARM_DEPTH, Arm, ArmHits, IndexHits, IndexRow, ask

BM25_K1, BM25_B = 1.2, 0.75

Rows = dict[UUID, IndexRow]


@dataclass(slots=True)
class MemoryStore:
    """What several handles share: the rows of each generation, which one answers, and which one is being made."""

    current: str = "first"
    building: str | None = None
    generations: dict[str, Rows] = field(default_factory=lambda: {"first": {}})


class MemoryChunkIndex:
    """A handle on ``store``; one with ``pinned`` stays with that generation."""

    def __init__(self, dimensions: int, store: MemoryStore | None = None, *, pinned: str | None = None) -> None:
        self._dimensions = dimensions
        self._store = store or MemoryStore()
        self._pinned = pinned

    @property
    def _rows(self) -> Rows:
        return self._store.generations[self._pinned or self._store.current]

    async def add(self, rows: Sequence[IndexRow]) -> None:
        self._rows.update({row.chunk_id: row for row in rows})

    async def delete_version(self, version_id: UUID) -> None:
        for chunk_id in [row.chunk_id for row in self._rows.values() if row.version_id == version_id]:
            del self._rows[chunk_id]

    async def search(
        self,
        query_vector: Sequence[float] | None,
        query_words: str,
        *,
        limit: int,
        user_id: UUID,
        versions: Collection[UUID] | None = None,
    ) -> IndexHits:
        allowed = [row for row in self._rows.values() if row.shared or row.owner_id == user_id]
        if versions is not None:
            allowed = [row for row in allowed if row.version_id in versions]
        depth = max(limit, ARM_DEPTH)
        asked: dict[Arm, Awaitable[ArmHits]] = {}
        if query_vector is not None:
            asked["dense"] = self._dense(query_vector, allowed, depth)
        if query_words:
            asked["sparse"] = self._sparse(query_words, allowed, depth)
        return await ask(asked, (ValueError,), limit)

    async def _dense(self, vector: Sequence[float], allowed: list[IndexRow], depth: int) -> ArmHits:
        if len(vector) != self._dimensions:
            raise ValueError("the vector has another length than those of the index")
        length = math.hypot(*vector) or 1.0
        return _best({row.chunk_id: _product(vector, row.vector) / length for row in allowed}, depth)

    async def _sparse(self, words: str, allowed: list[IndexRow], depth: int) -> ArmHits:
        """BM25 over the allowed rows."""
        counts = {row.chunk_id: Counter(row.words.split()) for row in allowed}
        average = sum(count.total() for count in counts.values()) / max(1, len(counts))
        scores: dict[UUID, float] = {}
        for word in set(words.split()):
            holding = {chunk_id: count for chunk_id, count in counts.items() if word in count}
            rarity = math.log(1 + (len(counts) - len(holding) + 0.5) / (len(holding) + 0.5))
            for chunk_id, count in holding.items():
                length = 1 - BM25_B + BM25_B * count.total() / average
                weight = rarity * count[word] * (BM25_K1 + 1) / (count[word] + BM25_K1 * length)
                scores[chunk_id] = scores.get(chunk_id, 0.0) + weight
        return _best(scores, depth)

    async def optimize(self) -> None:
        return None

    async def generation(self) -> str:
        return self._pinned or self._store.current

    async def versions(self) -> dict[UUID, int]:
        return dict(Counter(row.version_id for row in self._rows.values()))

    async def missing(self, chunk_ids: Collection[UUID]) -> set[UUID]:
        return set(chunk_ids) - self._rows.keys()

    async def aclose(self) -> None:
        return None


class MemoryRebuild:
    """A new generation in ``store``, or the one that a rebuild before left unpublished."""

    def __init__(self, dimensions: int, store: MemoryStore) -> None:
        if store.building is None:
            store.building = uuid4().hex
            store.generations[store.building] = {}
        self._store = store
        self._name = store.building
        self.index = MemoryChunkIndex(dimensions, store, pinned=self._name)

    async def publish(self) -> None:
        if self._store.current != self._name:
            del self._store.generations[self._store.current]
            self._store.current, self._store.building = self._name, None

    async def aclose(self) -> None:
        return None


def _product(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _best(scores: dict[UUID, float], depth: int) -> ArmHits:
    best = sorted(scores, key=lambda chunk_id: (-scores[chunk_id], chunk_id))[:depth]
    return {chunk_id: scores[chunk_id] for chunk_id in best}
