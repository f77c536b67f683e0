"""Recall: the candidates for one question, as the library ranks them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self
from uuid import UUID

RetrievalMode = Literal["hybrid", "dense", "sparse"]
RetrievalArm = Literal["dense", "sparse"]

RRF_K = 60
"""How slowly the weight of a rank falls when two recalls are fused."""


class Piece(Protocol):
    """A stored chunk of a live document. ``level`` is 1 (large) to 3 (leaf)."""

    @property
    def chunk_id(self) -> UUID: ...
    @property
    def document_id(self) -> UUID: ...
    @property
    def document_version(self) -> int: ...
    @property
    def filename(self) -> str: ...
    @property
    def page_number(self) -> int | None: ...
    @property
    def heading(self) -> str | None: ...
    @property
    def text(self) -> str: ...
    @property
    def level(self) -> int: ...
    @property
    def parent_id(self) -> UUID | None: ...
    @property
    def root_id(self) -> UUID | None: ...
    @property
    def ordinal(self) -> int: ...


class Hit(Piece, Protocol):
    """A recalled chunk: ``score`` is the recall score, ``rank`` its place after fusion, from 1.

    ``arms`` has its rank in each arm that found it, ``similarity`` its cosine to the query when the dense one did.
    """

    @property
    def score(self) -> float: ...
    @property
    def rank(self) -> int: ...
    @property
    def arms(self) -> Mapping[RetrievalArm, int]: ...
    @property
    def similarity(self) -> float | None: ...


class Recalled(Protocol):
    """What one recall found, best first, and by which arms."""

    @property
    def hits(self) -> Sequence[Hit]: ...
    @property
    def mode(self) -> RetrievalMode: ...


class Library(Protocol):
    """The documents that a user may see."""

    async def recall(
        self, user_id: UUID, query: str, limit: int, level: int = 3, *, collections: Collection[UUID] | None = None
    ) -> Recalled:
        """At most ``limit`` chunks of ``level``, best first; with ``collections`` of documents in these only."""
        ...

    async def chunks(self, user_id: UUID, ids: list[UUID]) -> Mapping[UUID, Piece]:
        """The chunks of ``ids`` that exist and that the user may see."""
        ...

    async def has_documents(self, user_id: UUID) -> bool:
        """Whether the user sees any document at all."""
        ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """A chunk on its way to become evidence; after a merge ``page_number`` is that of its best leaf.

    ``similarity`` and ``arms`` are as in :class:`Hit`, of a merged chunk the best below it; ``rerank_score`` is there
    once a reranker has judged it, ``for_questions`` names the sub-questions that found it.
    """

    chunk_id: UUID
    document_id: UUID
    document_version: int
    filename: str
    page_number: int | None
    heading: str | None
    text: str
    level: int
    parent_id: UUID | None
    root_id: UUID | None
    score: float
    rank: int
    similarity: float | None = None
    arms: Mapping[RetrievalArm, int] = field(default_factory=dict[RetrievalArm, int], hash=False)
    rerank_score: float | None = None
    for_questions: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        piece: Piece,
        *,
        score: float,
        rank: int,
        page_number: int | None,
        similarity: float | None,
        arms: Mapping[RetrievalArm, int],
    ) -> Self:
        """``piece`` as a candidate."""
        return cls(
            chunk_id=piece.chunk_id,
            document_id=piece.document_id,
            document_version=piece.document_version,
            filename=piece.filename,
            page_number=page_number,
            heading=piece.heading,
            text=piece.text,
            level=piece.level,
            parent_id=piece.parent_id,
            root_id=piece.root_id,
            score=score,
            rank=rank,
            similarity=similarity,
            arms=arms,
        )


def candidates(hits: Sequence[Hit]) -> list[Candidate]:
    """The hits as candidates, by rank."""
    made = [
        Candidate.of(
            hit,
            score=hit.score,
            rank=hit.rank,
            page_number=hit.page_number,
            similarity=hit.similarity,
            arms=hit.arms,
        )
        for hit in hits
    ]
    return sorted(made, key=lambda candidate: candidate.rank)


def fuse(earlier: Sequence[Candidate], later: Sequence[Candidate]) -> list[Candidate]:
    """Both lists as one by reciprocal ranks; ``later`` as it is when there is nothing earlier.

    A chunk of both keeps its best score, similarity and place in each arm.
    """
    if not earlier:
        return list(later)
    known: dict[UUID, Candidate] = {}
    weights: dict[UUID, float] = {}
    for one in (*later, *earlier):
        known[one.chunk_id] = _best_of(known[one.chunk_id], one) if one.chunk_id in known else one
        weights[one.chunk_id] = weights.get(one.chunk_id, 0.0) + 1 / (RRF_K + one.rank)
    ordered = sorted(known.values(), key=lambda one: -weights[one.chunk_id])
    return [replace(one, rank=rank) for rank, one in enumerate(ordered, start=1)]


def _best_of(one: Candidate, other: Candidate) -> Candidate:
    similarities = [value for value in (one.similarity, other.similarity) if value is not None]
    arms = dict(one.arms)
    for arm, rank in other.arms.items():
        arms[arm] = min(rank, arms.get(arm, rank))
    return replace(one, score=max(one.score, other.score), similarity=max(similarities, default=None), arms=arms)


def in_files(found: Sequence[Candidate], names: Sequence[str]) -> list[Candidate]:
    """Those of files that ``names`` name, in any case of letters; all of them when that leaves none."""
    wanted = {name.strip().casefold() for name in names}
    chosen = [one for one in found if one.filename.casefold() in wanted]
    return chosen or list(found)
