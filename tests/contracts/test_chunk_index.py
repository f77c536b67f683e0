"""What every chunk index does: which rows are found, in which order, and what stays hidden. Scores are not compared."""

import contextlib
import math
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from backend.errors import StorageUnavailable
from backend.infra.analyze import analyze, analyze_query
from backend.knowledge.index.base import ChunkIndex, IndexHits, IndexRebuild, IndexRow
from backend.knowledge.index.lance import LanceChunkIndex, LanceRebuild
from backend.knowledge.index.memory import MemoryChunkIndex, MemoryRebuild, MemoryStore
from backend.knowledge.index.milvus import MilvusChunkIndex, MilvusRebuild
from tests.support.milvus import milvus_lite
from tests.support.waiting import until

ALICE, BOB = uuid4(), uuid4()
DIMENSIONS = 2


class Place:
    """One index, to be opened by several handles, all closed at the end."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._kind = kind
        self._directory = str(directory)
        self._store = MemoryStore()
        self._url = ""
        self.opened = contextlib.AsyncExitStack()

    def _milvus(self) -> str:
        if not self._url:
            self._url = self.opened.enter_context(milvus_lite(self._directory))
        return self._url

    async def handle(self) -> ChunkIndex:
        index: ChunkIndex = MemoryChunkIndex(DIMENSIONS, self._store)
        if self._kind == "lance":
            index = await LanceChunkIndex.open(self._directory, dimensions=DIMENSIONS, embedder="test")
        elif self._kind == "milvus":
            index = await MilvusChunkIndex.open(self._milvus(), dimensions=DIMENSIONS, embedder="test")
        self.opened.push_async_callback(index.aclose)
        return index

    async def rebuild(self) -> IndexRebuild:
        rebuild: IndexRebuild
        if self._kind == "lance":
            rebuild = await LanceRebuild.open(self._directory, dimensions=DIMENSIONS, embedder="test")
        elif self._kind == "milvus":
            rebuild = await MilvusRebuild.open(self._milvus(), dimensions=DIMENSIONS, embedder="test")
        else:
            rebuild = MemoryRebuild(DIMENSIONS, self._store)
        self.opened.push_async_callback(rebuild.aclose)
        return rebuild


@pytest.fixture(params=["memory", "lance", "milvus"])
async def place(request: pytest.FixtureRequest, data_dir: Path) -> AsyncIterator[Place]:
    place = Place(request.param, data_dir)
    async with place.opened:
        yield place


@pytest.fixture
async def index(place: Place) -> ChunkIndex:
    return await place.handle()


def row(
    words: str,
    vector: list[float],
    *,
    owner: UUID | None = ALICE,
    shared: bool = True,
    version: UUID | None = None,
    chunk_id: UUID | None = None,
) -> IndexRow:
    length = math.hypot(*vector)
    unit = [value / length for value in vector]
    return IndexRow(chunk_id or uuid4(), version or uuid4(), owner, shared, analyze(words), unit)


def ids(found: IndexHits) -> list[UUID]:
    return [hit.chunk_id for hit in found.hits]


async def words(index: ChunkIndex, query: str, user: UUID = BOB, limit: int = 10) -> list[UUID]:
    """What the word arm alone finds."""
    return ids(await index.search(None, analyze_query(query), limit=limit, user_id=user))


async def finds(index: ChunkIndex, query: str, *rows: IndexRow) -> bool:
    """Whether the word arm finds these rows and no others; a search sees within seconds that the index was replaced."""
    return await words(index, query) == [row.chunk_id for row in rows]


async def near(index: ChunkIndex, vector: list[float], user: UUID = BOB, limit: int = 10) -> list[UUID]:
    """What the vector arm alone finds."""
    return ids(await index.search(vector, "", limit=limit, user_id=user))


async def test_an_empty_index_finds_nothing(index: ChunkIndex) -> None:
    found = await index.search([1.0, 0.0], "pump", limit=5, user_id=ALICE)
    assert (found.hits, found.mode) == ([], "hybrid")
    assert await index.versions() == {}
    await index.optimize()


async def test_both_arms_are_asked_and_each_hit_knows_its_ranks(index: ChunkIndex) -> None:
    near_row, named = row("apples", [1, 0]), row("pump PPR-9087", [0, 1])
    await index.add([near_row, named])
    found = await index.search([1.0, 0.1], analyze_query("ppr-9087"), limit=5, user_id=BOB)
    assert found.mode == "hybrid"
    assert [(hit.chunk_id, hit.rank, dict(hit.arms)) for hit in found.hits] == [
        (named.chunk_id, 1, {"dense": 2, "sparse": 1}),
        (near_row.chunk_id, 2, {"dense": 1}),
    ]
    assert found.hits[0].score > found.hits[1].score


async def test_the_vector_arm_orders_by_angle_not_by_length(index: ChunkIndex) -> None:
    rows = [row("x", [1, 0]), row("x", [0.8, 0.6]), row("x", [0, 1]), row("x", [-1, 0])]
    await index.add(rows[::-1])
    for query in ([1.0, 0.0], [5.0, 0.0]):
        assert await near(index, query) == [one.chunk_id for one in rows]


async def test_a_hit_of_the_vector_arm_knows_its_cosine(index: ChunkIndex) -> None:
    await index.add([row("x", [1, 0]), row("x", [0.8, 0.6]), row("x", [0, 1]), row("x", [-1, 0])])
    for query in ([1.0, 0.0], [5.0, 0.0]):
        found = await index.search(query, "", limit=10, user_id=BOB)
        assert [hit.similarity for hit in found.hits] == pytest.approx([1, 0.8, 0, -1], abs=1e-6)
    assert [hit.similarity for hit in (await index.search(None, "x", limit=1, user_id=BOB)).hits] == [None]


async def test_rare_words_weigh_more_and_short_rows_come_first(index: ChunkIndex) -> None:
    common = [row(f"pump station number {n}", [1, 0]) for n in range(5)]
    rare = row("pump with a gasket", [1, 0])
    long = row("gasket " + "and many other words about something else entirely " * 5, [1, 0])
    await index.add([*common, long, rare])
    assert (await words(index, "pump gasket"))[0] == rare.chunk_id
    assert await words(index, "gasket") == [rare.chunk_id, long.chunk_id]


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("The pumps were running", "pump"),
        ("阀门十七每晚十点关闭", "每晚十点"),
        ("ポンプの修理手順", "修理"),
        ("Error ERR_0x80070005 in v1.2.3", "err_0x80070005"),
        ("ＡＢＣ full width", "abc"),
    ],
)
async def test_i03_words_come_analysed_and_are_found(index: ChunkIndex, text: str, query: str) -> None:
    wanted = row(text, [1, 0])
    await index.add([wanted, row("something else", [1, 0])])
    assert await words(index, query) == [wanted.chunk_id]


async def test_words_have_no_operators(index: ChunkIndex) -> None:
    pump, valve = row("pump", [1, 0]), row("valve", [1, 0])
    await index.add([pump, valve])
    for query in ("pump AND valv", "+pump -valv", 'words:"pump" valv', "pump* (valv", "pump^2 ~valv"):
        found = await index.search(None, query, limit=5, user_id=BOB)
        assert set(ids(found)) <= {pump.chunk_id, valve.chunk_id}
    assert await words(index, "pu") == []


async def test_nothing_asked_finds_nothing(index: ChunkIndex) -> None:
    await index.add([row("pump", [1, 0])])
    assert (await index.search(None, "", limit=5, user_id=BOB)).hits == []
    assert await words(index, "zebra") == []
    assert await words(index, "🙂") == []


async def test_at_most_the_limit_and_beyond_the_depth_of_an_arm(index: ChunkIndex) -> None:
    await index.add([row("pump", [1, 0]) for _ in range(120)])
    for limit in (1, 7, 100):
        assert len(await words(index, "pump", limit=limit)) == limit
        assert len(await near(index, [1.0, 0.0], limit=limit)) == limit


async def test_one_failing_arm_leaves_the_other_and_the_mode_says_so(index: ChunkIndex) -> None:
    pump = row("pump", [1, 0])
    await index.add([pump])
    wrong = [1.0, 0.0, 0.0]
    found = await index.search(wrong, "pump", limit=5, user_id=BOB)
    assert (found.mode, [dict(hit.arms) for hit in found.hits]) == ("sparse", [{"sparse": 1}])
    found = await index.search(None, "pump", limit=5, user_id=BOB)
    assert (found.mode, len(found.hits)) == ("sparse", 1)
    found = await index.search([1.0, 0.0], "", limit=5, user_id=BOB)
    assert (found.mode, [dict(hit.arms) for hit in found.hits]) == ("dense", [{"dense": 1}])
    with pytest.raises(StorageUnavailable):
        await index.search(wrong, "", limit=5, user_id=BOB)


async def test_j03_what_is_not_the_users_is_filtered_before_ranking(index: ChunkIndex) -> None:
    own = row("pump", [0.2, 1], owner=BOB, shared=False)
    shared, nobodys = row("pump", [0.1, 1]), row("pump", [0, 1], owner=None)
    hidden = [row("pump", [1, 0], shared=False) for _ in range(200)]
    await index.add([*hidden, own, shared, nobodys])
    for user, visible in ((BOB, [own, shared, nobodys]), (uuid4(), [shared, nobodys])):
        found = await index.search([1.0, 0.0], "pump", limit=5, user_id=user)
        assert set(ids(found)) == {one.chunk_id for one in visible}
        assert all(set(hit.arms) == {"dense", "sparse"} for hit in found.hits)


async def test_i06_a_deleted_version_is_gone_and_only_that(index: ChunkIndex) -> None:
    version, other = uuid4(), uuid4()
    kept = row("pump", [1, 0], version=other)
    await index.add([row("pump", [1, 0], version=version), row("pump", [1, 0], version=version), kept])
    assert await index.versions() == {version: 2, other: 1}
    for _ in range(2):
        await index.delete_version(version)
    await index.delete_version(uuid4())
    assert ids(await index.search([1.0, 0.0], "pump", limit=5, user_id=BOB)) == [kept.chunk_id]
    assert await index.versions() == {other: 1}


async def test_adding_again_replaces(index: ChunkIndex) -> None:
    first = row("pump", [1, 0])
    await index.add([first, row("valve", [0, 1])])
    await index.add([first])
    assert (await index.versions())[first.version_id] == 1
    assert await words(index, "pump") == [first.chunk_id]
    again = row("turbine", [0, 1], version=first.version_id, chunk_id=first.chunk_id, shared=False)
    await index.add([again, again])
    assert await words(index, "pump") == []
    assert await words(index, "turbine") == []
    assert await words(index, "turbine", ALICE) == [first.chunk_id]


async def test_nothing_to_add(index: ChunkIndex) -> None:
    await index.add([])
    assert await index.versions() == {}


async def test_what_is_missing(index: ChunkIndex) -> None:
    there, absent = row("pump", [1, 0]), uuid4()
    await index.add([there])
    assert await index.missing([there.chunk_id, absent]) == {absent}
    assert await index.missing([]) == set()


async def test_handles_see_each_others_changes_at_once(place: Place) -> None:
    writer, reader = await place.handle(), await place.handle()
    old, new = row("pump", [1, 0]), row("pump", [1, 0])
    await writer.add([old])
    assert await words(reader, "pump") == [old.chunk_id]
    await reader.add([new])
    await writer.delete_version(old.version_id)
    for handle in (writer, reader):
        assert ids(await handle.search([1.0, 0.0], "pump", limit=5, user_id=BOB)) == [new.chunk_id]


async def test_searching_is_right_before_and_after_optimizing(index: ChunkIndex) -> None:
    rows = [row(f"pump {n}", [1, n / 1000]) for n in range(1100)]
    await index.add(rows)
    for _ in range(2):
        assert (await near(index, [1.0, 0.0]))[0] == rows[0].chunk_id
        assert await words(index, "1099") == [rows[1099].chunk_id]
        await index.optimize()


# --- rebuilding --------------------------------------------------------------------------------------------------


async def test_the_old_index_answers_until_the_new_one_is_published(place: Place) -> None:
    index, rebuild = await place.handle(), await place.rebuild()
    old, new = row("pump", [1, 0]), row("pump", [1, 0])
    await index.add([old])
    before = await index.generation()
    await rebuild.index.add([new])
    assert await words(index, "pump") == [old.chunk_id]
    assert await words(rebuild.index, "pump") == [new.chunk_id]
    assert await index.generation() == before
    for _ in range(2):
        await rebuild.publish()
    for handle in (index, await place.handle(), rebuild.index):
        assert await handle.generation() != before
        assert await words(handle, "pump") == [new.chunk_id]


async def test_writes_go_to_the_published_index(place: Place) -> None:
    index, rebuild = await place.handle(), await place.rebuild()
    gone, added = row("pump", [1, 0]), row("pump", [1, 0])
    await rebuild.index.add([gone])
    await rebuild.publish()
    await index.delete_version(gone.version_id)
    await index.add([added])
    assert await words(await place.handle(), "pump") == [added.chunk_id]
    assert await rebuild.index.versions() == {added.version_id: 1}


async def test_an_unpublished_rebuild_is_taken_up_again(place: Place) -> None:
    index = await place.handle()
    left = row("pump", [1, 0])
    await (await place.rebuild()).index.add([left])
    again = await place.rebuild()
    assert await again.index.missing([left.chunk_id]) == set()
    await again.publish()
    await until(lambda: finds(index, "pump", left))
    third = await place.rebuild()
    assert await third.index.versions() == {}


async def test_j03_only_leaves_of_the_versions_that_were_asked_for(index: ChunkIndex) -> None:
    """Before ranking, and within what the user may see."""
    wanted, hidden = row("pump", [0.1, 1]), row("pump", [0.2, 1], shared=False)
    await index.add([*(row("pump", [1, 0]) for _ in range(120)), wanted, hidden])
    versions = {wanted.version_id, hidden.version_id, uuid4()}
    for user, visible in ((BOB, [wanted]), (ALICE, [wanted, hidden])):
        found = await index.search([1.0, 0.0], "pump", limit=5, user_id=user, versions=versions)
        assert set(ids(found)) == {one.chunk_id for one in visible}
        assert all(set(hit.arms) == {"dense", "sparse"} for hit in found.hits)
    assert ids(await index.search([1.0, 0.0], "pump", limit=5, user_id=ALICE, versions=set())) == []
