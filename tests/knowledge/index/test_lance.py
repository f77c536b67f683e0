"""The LanceDB adapter."""

import asyncio
import math
import shutil
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from backend.errors import StorageUnavailable
from backend.infra.analyze import analyze, analyze_query
from backend.knowledge.index import lance_tables
from backend.knowledge.index.base import IndexRow, fuse
from backend.knowledge.index.lance import LanceChunkIndex, LanceRebuild
from backend.knowledge.index.lance_tables import Generations, connect
from tests.support.waiting import until

ALICE, BOB = uuid4(), uuid4()


def row(
    words: str,
    vector: list[float],
    owner: UUID = ALICE,
    shared: bool = True,
    version: UUID | None = None,
    chunk_id: UUID | None = None,
) -> IndexRow:
    return IndexRow(chunk_id or uuid4(), version or uuid4(), owner, shared, analyze(words), vector)


async def open_at(path: Path, dimensions: int = 2, embedder: str = "test") -> LanceChunkIndex:
    return await LanceChunkIndex.open(str(path), dimensions=dimensions, embedder=embedder)


def test_fusion_adds_reciprocal_ranks() -> None:
    a, b, c = (UUID(int=n) for n in (1, 2, 3))
    hits = fuse({"dense": {a: 0.9, b: 0.8}, "sparse": {b: 7.0, c: 5.0}}, 10)
    assert [(hit.chunk_id, hit.rank, dict(hit.arms)) for hit in hits] == [
        (b, 1, {"dense": 2, "sparse": 1}),
        (a, 2, {"dense": 1}),
        (c, 3, {"sparse": 2}),
    ]
    assert [hit.similarity for hit in hits] == [0.8, 0.9, None]
    assert [hit.score for hit in hits] == pytest.approx([1 / 12 + 1 / 11, 1 / 11, 1 / 12])
    assert [hit.chunk_id for hit in fuse({"dense": {c: 0.9}, "sparse": {a: 7.0}}, 10)] == [a, c]
    assert len(fuse({"dense": {a: 0.9, b: 0.8, c: 0.7}}, 2)) == 2


def test_the_first_of_one_arm_outweighs_what_both_find_far_down() -> None:
    first, both = UUID(int=1), UUID(int=2)
    others = [UUID(int=n) for n in range(10, 57)]
    dense = {first: 0.9} | dict.fromkeys(others, 0.8) | {both: 0.7}
    sparse = {UUID(int=n): 1.0 for n in range(100, 148)} | {both: 0.5}
    ranks = {hit.chunk_id: hit.rank for hit in fuse({"dense": dense, "sparse": sparse}, 200)}
    assert ranks[first] < ranks[both]


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
        with pytest.raises(ValueError, match=r"EMBEDDING_MODEL.*citewire reindex"):
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


# --- the approximate index -------------------------------------------------------------------------------------------


def spread(count: int) -> list[IndexRow]:
    """Rows all around the circle."""
    return [row(f"pump {n}", [math.cos(n), math.sin(n)]) for n in range(count)]


async def vector_index(index: LanceChunkIndex) -> tuple[int, int] | None:
    """Indexed rows and segments of the approximate index."""
    found = [one for one in await index._table.list_indices() if one.columns == ["vector"]]
    return (found[0].num_indexed_rows, found[0].num_segments) if found else None


async def test_the_approximate_index_is_made_apart_while_searches_and_writes_go_on(data_dir: Path) -> None:
    index = await LanceChunkIndex.open(str(data_dir), dimensions=2, embedder="test", ann_rows=600)
    rows = spread(599)
    await index.add(rows)
    await index.optimize()
    assert await vector_index(index) is None
    mine = row("turbine", [0.6, 0.8], owner=BOB, shared=False)
    await index.add([mine])
    building = asyncio.create_task(index.optimize())
    during = 0
    while not building.done():
        late = row(f"late {during}", [1, 0])
        await index.add([late])
        found = await index.search([1.0, 0.0], analyze_query(f"late {during}"), limit=5, user_id=BOB)
        assert late.chunk_id in {hit.chunk_id for hit in found.hits}
        await index.delete_version(late.version_id)
        during += 1
    await building
    assert during > 0
    built = await vector_index(index)
    assert built is not None
    assert built[0] >= 600
    found = await index.search([0.6, 0.8], "", limit=50, user_id=BOB)
    assert mine.chunk_id in {hit.chunk_id for hit in found.hits}
    assert mine.chunk_id not in {
        hit.chunk_id for hit in (await index.search([0.6, 0.8], "", limit=50, user_id=ALICE)).hits
    }
    await index.aclose()


async def test_the_approximate_index_takes_in_the_tail_and_is_made_anew_when_it_is_in_pieces(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lance_tables, "ANN_SEGMENTS", 2)
    index = await LanceChunkIndex.open(str(data_dir), dimensions=2, embedder="test", ann_rows=300)
    await index.add(spread(300))
    for more in (0, 1000, 1000):
        await index.add(spread(more))
        await lance_tables.fold(index._table, 300)
    assert await vector_index(index) == (2300, 3)
    assert await lance_tables.ann_is_due(index._table, 300)
    await lance_tables.fold(index._table, 300)
    assert await vector_index(index) == (2300, 1)
    await index.aclose()


async def test_a_cancelled_build_ends_its_process(data_dir: Path) -> None:
    index = await LanceChunkIndex.open(str(data_dir), dimensions=2, embedder="test", ann_rows=300)
    await index.add(spread(300))
    building = asyncio.create_task(index.optimize())
    await until(lambda: workers(data_dir))
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert workers(data_dir) == []
    await index.aclose()


def workers(data_dir: Path) -> list[str]:
    """The processes that fold the index there."""
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if _readable(path)]
    return [
        command.decode() for command in commands if b"lance_worker" in command and str(data_dir).encode() in command
    ]


def _readable(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:  # it ended
        return False


# --- another embedding model -----------------------------------------------------------------------------------------


async def test_a_server_with_the_former_model_answers_on_but_takes_no_more_writes(data_dir: Path) -> None:
    former = await open_at(data_dir)
    old = row("pump", [1, 0])
    await former.add([old])
    rebuild = await LanceRebuild.open(str(data_dir), dimensions=3, embedder="other")
    new = row("pump", [1, 0, 0], version=old.version_id, chunk_id=old.chunk_id)
    await rebuild.index.add([new])
    await rebuild.publish()
    with pytest.raises(StorageUnavailable):
        await former.add([row("valve", [1, 0])])
    found = await former.search([1.0, 0.0], "pump", limit=5, user_id=BOB)
    assert (found.mode, [hit.chunk_id for hit in found.hits]) == ("hybrid", [old.chunk_id])
    with pytest.raises(ValueError, match="EMBEDDING_MODEL"):
        await open_at(data_dir)
    current = await open_at(data_dir, 3, "other")
    assert len((await current.search([1.0, 0.0, 0.0], "", limit=5, user_id=BOB)).hits) == 1
    await former.delete_version(old.version_id)
    assert await current.versions() == {}
    for handle in (former, rebuild, current):
        await handle.aclose()


async def test_a_rebuild_left_by_another_model_is_not_taken_up(data_dir: Path) -> None:
    first = await LanceRebuild.open(str(data_dir), dimensions=2, embedder="test")
    await first.index.add([row("pump", [1, 0])])
    second = await LanceRebuild.open(str(data_dir), dimensions=2, embedder="other")
    assert await second.index.versions() == {}
    await first.aclose()
    await second.aclose()


async def test_replaced_tables_are_dropped_when_nobody_can_search_them_any_more(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = await open_at(data_dir)
    for _ in range(2):
        rebuild = await LanceRebuild.open(str(data_dir), dimensions=2, embedder="test")
        await rebuild.publish()
        await rebuild.aclose()
    current = await index.generation()
    connection = await connect(str(data_dir))
    await index.optimize()
    assert len((await connection.list_tables()).tables) == 4  # three generations and the log
    monkeypatch.setattr(lance_tables, "RETIRED_SECONDS", 0)
    await index.optimize()
    assert sorted((await connection.list_tables()).tables) == sorted([current, "generations"])
    assert await Generations(connection).current() == current
    await index.optimize()
    connection.close()
    await index.aclose()


# --- what was deleted ------------------------------------------------------------------------------------------------


async def words_in_files(index: LanceChunkIndex, directory: Path) -> tuple[int, bool]:
    """Rows in the files that were deleted, and whether the bytes of any file hold the marker."""
    versions = await index._table.list_versions()
    held = sum(int(version["metadata"].get("total_deletion_file_rows", "0")) for version in versions)
    files = [file.read_bytes() for file in directory.rglob("*") if file.is_file()]
    return held, any(b"zebramarker" in content for content in files)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("ann_rows", [100_000, 300])
async def test_i06_of_a_deleted_row_nothing_stays_in_the_files(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, folded: bool, ann_rows: int
) -> None:
    monkeypatch.setattr(lance_tables, "KEPT_SECONDS", 0.001)
    index = await LanceChunkIndex.open(str(data_dir), dimensions=2, embedder="test", ann_rows=ann_rows)
    rows, marked = spread(400), row("zebramarker " * 3, [1, 0])
    if folded:  # one file with all rows, of which a tenth would have to go before the library rewrites it
        await index.add([*rows, marked])
        await lance_tables.fold(index._table, ann_rows)
    else:
        await index.add(rows)
        await index.add([marked])
    await index.delete_version(marked.version_id)
    monkeypatch.setattr(index, "_fold_apart", lambda: lance_tables.fold(index._table, ann_rows))
    monkeypatch.setattr("backend.knowledge.index.lance.ERASE_SHARE", 0)
    await until(lambda: nothing_left(index, data_dir))
    assert sum((await index.versions()).values()) == 400
    found = await index.search([math.cos(7), math.sin(7)], analyze_query("pump 7"), limit=3, user_id=BOB)
    assert found.hits[0].chunk_id == rows[7].chunk_id
    await index.aclose()


async def nothing_left(index: LanceChunkIndex, directory: Path) -> bool:
    await index.optimize()
    return await words_in_files(index, directory) == (0, False)
