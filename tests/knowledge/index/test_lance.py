"""The LanceDB adapter."""

import shutil
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from backend.errors import StorageUnavailable
from backend.infra.analyze import analyze, analyze_query
from backend.knowledge.index.base import IndexRow, fuse
from backend.knowledge.index.lance import LanceChunkIndex

ALICE, BOB = uuid4(), uuid4()


def row(
    words: str, vector: list[float], owner: UUID = ALICE, shared: bool = True, version: UUID | None = None
) -> IndexRow:
    return IndexRow(uuid4(), version or uuid4(), owner, shared, analyze(words), vector)


async def open_at(path: Path, dimensions: int = 2, embedder: str = "test") -> LanceChunkIndex:
    return await LanceChunkIndex.open(str(path), dimensions=dimensions, embedder=embedder)


def test_fusion_adds_reciprocal_ranks() -> None:
    a, b, c = (UUID(int=n) for n in (1, 2, 3))
    hits = fuse({"dense": [a, b], "sparse": [b, c]}, 10)
    assert [(hit.chunk_id, hit.rank, dict(hit.arms)) for hit in hits] == [
        (b, 1, {"dense": 2, "sparse": 1}),
        (a, 2, {"dense": 1}),
        (c, 3, {"sparse": 2}),
    ]
    assert [hit.score for hit in hits] == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62])
    assert [hit.chunk_id for hit in fuse({"dense": [c], "sparse": [a]}, 10)] == [a, c]
    assert len(fuse({"dense": [a, b, c]}, 2)) == 2


async def test_both_arms_are_asked_and_known(data_dir: Path) -> None:
    index = await open_at(data_dir)
    near, named = row("apples", [1, 0]), row("pump PPR-9087", [0, 1])
    await index.add([near, named])
    found = await index.search([1.0, 0.1], analyze_query("ppr-9087"), limit=5, user_id=BOB)
    assert found.mode == "hybrid"
    assert [(hit.chunk_id, dict(hit.arms)) for hit in found.hits] == [
        (named.chunk_id, {"dense": 2, "sparse": 1}),
        (near.chunk_id, {"dense": 1}),
    ]
    await index.aclose()


async def test_an_empty_index_finds_nothing(data_dir: Path) -> None:
    index = await open_at(data_dir)
    assert (await index.search([1.0, 0.0], "pump", limit=5, user_id=ALICE)).hits == []
    await index.optimize()
    await index.aclose()


async def test_j03_others_private_rows_are_filtered_before_ranking(data_dir: Path) -> None:
    index = await open_at(data_dir)
    own = row("pump", [0.2, 1], owner=BOB, shared=False)
    shared = row("pump", [0.1, 1], owner=ALICE)
    await index.add([*(row("pump", [1, 0], owner=ALICE, shared=False) for _ in range(300)), own, shared])
    for optimized in (False, True):
        found = await index.search([1.0, 0.0], "pump", limit=5, user_id=BOB)
        assert {hit.chunk_id for hit in found.hits} == {own.chunk_id, shared.chunk_id}
        assert all(set(hit.arms) == {"dense", "sparse"} for hit in found.hits)
        if not optimized:
            await index._table.optimize()
    await index.aclose()


async def test_other_handles_see_every_change_at_once(data_dir: Path) -> None:
    writer, reader = await open_at(data_dir), await open_at(data_dir)
    old, new = row("pump", [1, 0]), row("pump", [1, 0])
    await writer.add([old])
    assert [hit.chunk_id for hit in (await reader.search([1.0, 0.0], "pump", limit=5, user_id=BOB)).hits] == [
        old.chunk_id
    ]
    await writer.add([new])
    await writer.delete_version(old.version_id)
    await writer.delete_version(uuid4())
    assert [hit.chunk_id for hit in (await reader.search([1.0, 0.0], "pump", limit=5, user_id=BOB)).hits] == [
        new.chunk_id
    ]
    await writer.aclose()
    await reader.aclose()


async def test_one_failing_arm_leaves_the_other(data_dir: Path) -> None:
    index = await open_at(data_dir)
    pump = row("pump", [1, 0])
    await index.add([pump])
    found = await index.search([1.0, 0.0, 0.0], "pump", limit=5, user_id=BOB)  # not the index's dimensions
    assert (found.mode, [dict(hit.arms) for hit in found.hits]) == ("sparse", [{"sparse": 1}])
    found = await index.search(None, "pump", limit=5, user_id=BOB)
    assert (found.mode, len(found.hits)) == ("sparse", 1)
    found = await index.search([1.0, 0.0], "", limit=5, user_id=BOB)
    assert (found.mode, [dict(hit.arms) for hit in found.hits]) == ("dense", [{"dense": 1}])
    with pytest.raises(StorageUnavailable):
        await index.search([1.0, 0.0, 0.0], "", limit=5, user_id=BOB)
    await index.aclose()


async def test_a_lost_index_is_unavailable(data_dir: Path) -> None:
    index = await open_at(data_dir)
    await index.add([row("pump", [1, 0])])
    shutil.rmtree(data_dir / "chunks.lance")
    with pytest.raises(StorageUnavailable):
        await index.search([1.0, 0.0], "pump", limit=5, user_id=BOB)
    await index.aclose()


async def test_another_embedding_model_is_refused_by_name(data_dir: Path) -> None:
    await (await open_at(data_dir)).aclose()
    for dimensions, embedder in ((2, "other"), (3, "test")):
        with pytest.raises(ValueError, match="EMBEDDING_MODEL"):
            await open_at(data_dir, dimensions, embedder)


async def test_the_tail_is_folded_when_it_is_long(data_dir: Path) -> None:
    index = await open_at(data_dir)
    await index.add([row("pump", [1, 0]) for _ in range(999)])
    await index.optimize()
    stats = await index._table.index_stats("words_idx")
    assert stats is not None
    assert stats.num_unindexed_rows == 999
    await index.add([row("valve", [1, 0])])
    await index.optimize()
    stats = await index._table.index_stats("words_idx")
    assert stats is not None
    assert stats.num_unindexed_rows == 0
    assert len((await index.search(None, "valv", limit=5, user_id=BOB)).hits) == 1
    await index.aclose()
