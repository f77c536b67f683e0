"""The port of a chunk index: words and vectors in, ranked chunk ids out.

Words come analysed (``infra/analyze.py``), so an adapter splits them at spaces and does nothing else to them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol
from uuid import UUID

from backend.errors import StorageUnavailable

logger = logging.getLogger(__name__)

NOBODY = UUID(int=0)
"""The owner in an index of what came with the install."""

Arm = Literal["dense", "sparse"]
Mode = Literal["hybrid", "dense", "sparse"]

RRF_K = 10
"""How slowly the weight of a rank falls. With the usual 60 and two arms, what both find near their fiftieth place
outweighs the first of one arm, which is right more often; docs/evaluation.md has the figures."""
ARM_DEPTH = 50
"""How many rows each arm is asked for at least: a chunk that both arms find far down still rises by fusion."""


@dataclass(frozen=True, slots=True)
class IndexRow:
    """One leaf. ``vector`` has unit length; ``words`` is what :func:`~backend.infra.analyze.analyze` made."""

    chunk_id: UUID
    version_id: UUID
    owner_id: UUID | None
    shared: bool
    words: str
    vector: Sequence[float]


@dataclass(frozen=True, slots=True)
class IndexHit:
    """``score`` is the reciprocal rank sum, ``rank`` counts from 1; ``arms`` has the rank in each arm that found it.

    ``similarity`` is the cosine to the query, ``None`` when the dense arm did not find the chunk.
    """

    chunk_id: UUID
    score: float
    rank: int
    arms: Mapping[Arm, int]
    similarity: float | None


@dataclass(frozen=True, slots=True)
class IndexHits:
    """Best first. ``mode`` says which arms were asked and answered."""

    hits: list[IndexHit]
    mode: Mode


class ChunkIndex(Protocol):
    """Every method ends within a deadline. Raises :class:`StorageUnavailable` when the index cannot do its part."""

    async def add(self, rows: Sequence[IndexRow]) -> None:
        """Adds leaves, each in place of one with its id; they are found from then on, by other processes too."""
        ...

    async def delete_version(self, version_id: UUID) -> None:
        """Removes every leaf of a version; there may be none."""
        ...

    async def search(
        self,
        query_vector: Sequence[float] | None,
        query_words: str,
        *,
        limit: int,
        user_id: UUID,
        versions: Collection[UUID] | None = None,
    ) -> IndexHits:
        """At most ``limit`` leaves that are shared or ``user_id``'s own, by reciprocal rank fusion of both arms.

        With ``versions`` only leaves of these; a thousand of them cost some 10 ms, so there should not be many more.
        Without a vector, or when one arm fails, the other answers alone; so it does when ``query_words`` is empty.
        """
        ...

    async def optimize(self) -> None:
        """Folds what was added since into the indexes, if that is due; searching is right without it, only slower.

        It may take minutes, in which searches and writes go on; never raises for a fault of the index.
        """
        ...

    async def generation(self) -> str:
        """Names what is searched and written now; another name after a rebuild was published."""
        ...

    async def versions(self) -> dict[UUID, int]:
        """How many leaves of each version there are."""
        ...

    async def missing(self, chunk_ids: Collection[UUID]) -> set[UUID]:
        """Those of ``chunk_ids`` that are not there."""
        ...

    async def aclose(self) -> None: ...


class IndexRebuild(Protocol):
    """A new index beside the one that answers. What a killed rebuild with the same embedder left is taken up again.

    Raises :class:`StorageUnavailable` as the index does.
    """

    @property
    def index(self) -> ChunkIndex:
        """The new one, to be filled; after :meth:`publish` too."""
        ...

    async def publish(self) -> None:
        """Puts the new index in the place of the old one; twice is once.

        Every handle of every process writes to it from then on, and searches it within seconds.
        """
        ...

    async def aclose(self) -> None: ...


ArmHits = dict[UUID, float]
"""What one arm found, best first, with the arm's own score: the cosine of the dense one, BM25 of the sparse one."""


async def ask(arms: Mapping[Arm, Awaitable[ArmHits]], failures: tuple[type[Exception], ...], limit: int) -> IndexHits:
    """The fused answers of ``arms``; one that ends in ``failures`` is left out and logged.

    Raises :class:`StorageUnavailable` when arms were asked and none answered.
    """
    answers = await asyncio.gather(*arms.values(), return_exceptions=True)
    ranked: dict[Arm, ArmHits] = {}
    for arm, answer in zip(arms, answers, strict=True):
        if not isinstance(answer, BaseException):
            ranked[arm] = answer
        elif isinstance(answer, failures):
            logger.warning("the %s arm of the index failed", arm, exc_info=answer)
        else:
            raise answer
    if arms and not ranked:
        raise StorageUnavailable(retry_after=1)
    return IndexHits(fuse(ranked, limit), next(iter(ranked)) if len(ranked) == 1 else "hybrid")


def fuse(ranked: Mapping[Arm, ArmHits], limit: int) -> list[IndexHit]:
    """Reciprocal rank fusion of what the arms found; equal scores are ordered by the better rank, then by the rank by
    words, which tell identifiers apart, then by id."""
    arms: dict[UUID, dict[Arm, int]] = {}
    for arm, chunk_ids in ranked.items():
        for rank, chunk_id in enumerate(chunk_ids, start=1):
            arms.setdefault(chunk_id, {})[arm] = rank
    scored = [(sum(1 / (RRF_K + rank) for rank in ranks.values()), chunk_id) for chunk_id, ranks in arms.items()]
    last = len(arms) + 1
    scored.sort(key=lambda item: (-item[0], min(arms[item[1]].values()), arms[item[1]].get("sparse", last), item[1]))
    similarities = ranked.get("dense", {})
    return [
        IndexHit(chunk_id, score, rank, arms[chunk_id], similarities.get(chunk_id))
        for rank, (score, chunk_id) in enumerate(scored[:limit], start=1)
    ]
