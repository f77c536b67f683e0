from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.rag.merge import auto_merge
from backend.rag.retrieve import Candidate, candidates
from tests.rag.library import MemoryLibrary, StoredPiece, identify, leaf

UNHURRIED = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
USER = identify("user")
SECTIONS = [
    leaf("root", level=1, page_number=1),
    leaf("a", level=2, parent="root", root="root", page_number=1),
    leaf("b", level=2, parent="root", root="root", page_number=5),
    leaf("c", level=2, parent="root", root="root", page_number=8),
]


def leaves(*names: str) -> list[StoredPiece]:
    """``a1`` is the first leaf of section ``a``, on page 1 of it."""
    return [leaf(name, parent=name[0], root="root", page_number=int(name[1])) for name in names]


async def merged(found: list[StoredPiece], threshold: int = 2, stored: Sequence[StoredPiece] = SECTIONS):
    library = MemoryLibrary(found, list(stored))
    recall = await library.recall(USER, "q", 50)

    async def fetch(ids: list[UUID]) -> dict[UUID, StoredPiece]:
        return await library.chunks(USER, ids)

    return await auto_merge(candidates(recall.hits), 3, threshold, fetch)


def names(found: Sequence[Candidate]) -> list[str]:
    return [candidate.text for candidate in found]


async def test_below_the_threshold_nothing_changes():
    result = await merged(leaves("a1", "b1", "c1"))
    assert (names(result.candidates), result.replaced, result.steps) == (["a1", "b1", "c1"], 0, 0)


async def test_children_give_way_to_their_parent_at_the_place_of_the_best():
    result = await merged(leaves("b3", "a2", "c1", "a1"))
    assert (names(result.candidates), result.replaced, result.steps) == (["b3", "a", "c1"], 2, 1)
    parent = result.candidates[1]
    assert (parent.rank, parent.score, parent.page_number, parent.level) == (2, 1 / 62, 2, 2)


async def test_a_parent_has_the_best_similarity_and_ranks_below_it():
    found = [
        replace(one, arms=arms, similarity=similarity)
        for one, arms, similarity in zip(
            leaves("a1", "a2"), ({"sparse": 1}, {"dense": 4, "sparse": 3}), (None, 0.8), strict=True
        )
    ]
    parent = (await merged(found)).candidates[0]
    assert (parent.text, parent.similarity, parent.arms) == ("a", 0.8, {"dense": 4, "sparse": 1})


async def test_merging_goes_on_one_level_up_and_takes_stray_leaves_of_the_root_along():
    result = await merged(leaves("c7", "a1", "a2", "b1", "b2"))
    assert (names(result.candidates), result.steps) == (["root"], 2)
    assert result.replaced == 4 + 3
    root = result.candidates[0]
    assert (root.rank, root.page_number, root.level) == (1, 7, 1)


async def test_threshold_is_respected():
    found = leaves("a1", "a2", "b1", "b2", "b3")
    result = await merged(found, threshold=3)
    assert (names(result.candidates), result.replaced, result.steps) == (["a1", "a2", "b"], 3, 1)


async def test_a_parent_that_is_gone_replaces_nothing():
    result = await merged(leaves("a1", "a2"), stored=[])
    assert (names(result.candidates), result.replaced, result.steps) == (["a1", "a2"], 0, 0)


async def test_chunks_without_a_parent_stay():
    result = await merged([leaf("lone"), leaf("other")])
    assert names(result.candidates) == ["lone", "other"]


@UNHURRIED
@given(
    st.lists(st.sampled_from([f"{s}{n}" for s in "abc" for n in range(1, 6)]), unique=True, max_size=15),
    st.integers(2, 5),
)
async def test_nothing_is_lost_or_twice_and_the_order_is_by_rank(found: list[str], threshold: int):
    result = await merged(leaves(*found), threshold)
    again = await merged(leaves(*found), threshold)
    assert result == again
    ranks = [candidate.rank for candidate in result.candidates]
    assert ranks == sorted(set(ranks))
    texts = set(names(result.candidates))
    assert all(name in texts or name[0] in texts or "root" in texts for name in found)
    if "root" in texts:
        assert texts == {"root"}
    assert not any(name in texts and name[0] in texts for name in found)
