"""Auto-merge: when enough pieces of one section were found, the section itself is the better evidence."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from backend.rag.retrieve import Candidate, Piece, RetrievalArm

TOP_LEVEL = 1

FetchPieces = Callable[[list[UUID]], Awaitable[Mapping[UUID, Piece]]]


@dataclass(frozen=True, slots=True)
class Merged:
    """``replaced`` counts the candidates that gave way to a larger one, ``steps`` the levels where that happened."""

    candidates: list[Candidate]
    replaced: int = 0
    steps: int = 0


async def auto_merge(found: Sequence[Candidate], level: int, threshold: int, fetch: FetchPieces) -> Merged:
    """``found`` (of ``level``) with parents in place of ``threshold`` or more of their children, level by level.

    A parent takes rank and page of its best child and the best score, similarity and arm ranks below it. A parent
    that ``fetch`` does not give (its document is gone) replaces nothing. Deterministic; the result is sorted by rank.
    """
    current, replaced, steps = list(found), 0, 0
    for child_level in range(level, TOP_LEVEL, -1):
        groups = _families(current, child_level, threshold)
        pieces: Mapping[UUID, Piece] = await fetch(list(groups)) if groups else {}
        merged = _replace(current, {key: pieces[key] for key in groups if key in pieces})
        replaced += merged.replaced
        steps += merged.steps
        current = merged.candidates
    return Merged(current, replaced, steps)


def _families(found: Sequence[Candidate], level: int, threshold: int) -> dict[UUID, int]:
    """Parents of candidates of ``level`` with at least ``threshold`` children among them."""
    counts: dict[UUID, int] = {}
    for candidate in found:
        if candidate.level == level and candidate.parent_id is not None:
            counts[candidate.parent_id] = counts.get(candidate.parent_id, 0) + 1
    return {parent: count for parent, count in counts.items() if count >= threshold}


def _replace(found: Sequence[Candidate], parents: Mapping[UUID, Piece]) -> Merged:
    kept: list[Candidate] = []
    below: dict[UUID, list[Candidate]] = {}
    for candidate in found:
        parent = _ancestor(candidate, parents)
        if parent is None:
            kept.append(candidate)
        else:
            below.setdefault(parent, []).append(candidate)
    made = [_parent(parents[key], children) for key, children in below.items()]
    replaced = sum(len(children) for children in below.values())
    return Merged(sorted([*kept, *made], key=lambda item: item.rank), replaced, 1 if made else 0)


def _ancestor(candidate: Candidate, parents: Mapping[UUID, Piece]) -> UUID | None:
    """The chosen parent whose text holds this candidate; a leaf may lie in a chosen root without being its child."""
    for key in (candidate.parent_id, candidate.root_id):
        if key is not None and key in parents and key != candidate.chunk_id:
            return key
    return None


def _parent(piece: Piece, children: Sequence[Candidate]) -> Candidate:
    best = min(children, key=lambda child: child.rank)
    similarities = [child.similarity for child in children if child.similarity is not None]
    arms: dict[RetrievalArm, int] = {}
    for child in children:
        for arm, rank in child.arms.items():
            arms[arm] = min(rank, arms.get(arm, rank))
    return Candidate.of(
        piece,
        score=max(child.score for child in children),
        rank=best.rank,
        page_number=best.page_number,
        similarity=max(similarities, default=None),
        arms=arms,
    )
