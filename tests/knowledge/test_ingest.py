"""Making versions: replace, fail, get killed."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.errors import (
    AppError,
    DocumentError,
    NotFound,
    ProviderError,
    TooLarge,
)
from backend.infra.analyze import analyze
from backend.infra.database.tables import DocumentVersion
from backend.infra.files import document_path, write_atomic
from backend.knowledge.chunk import chunk_pages
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex, IndexRow
from backend.knowledge.parse import Page
from backend.knowledge.repository import BegunVersion, KnowledgeRepository, Upload
from backend.knowledge.service import KnowledgeBase
from backend.schemas.auth import Principal
from tests.knowledge.conftest import (
    NOTHING,
    GatedEmbedder,
    Originals,
    found,
    indexed,
    make_pdf,
    rows,
)


async def test_h10_the_old_version_answers_until_the_new_one_is_ready(
    library: KnowledgeBase,
    embedder: GatedEmbedder,
    index: ChunkIndex,
    engine: AsyncEngine,
    alice: Principal,
    originals: Originals,
) -> None:
    first = await library.upload(alice, "plan.txt", b"The gate opens at seven.")
    embedder.gate.clear()
    embedder.reached.clear()
    second = asyncio.create_task(library.upload(alice, "plan.txt", b"The gate opens at nine."))
    await embedder.reached.wait()
    assert await found(library, alice, "When does the gate open?") == ["The gate opens at seven."]
    [info] = await library.list_documents(alice)
    assert info.status == "ready"
    embedder.gate.set()
    assert (await second).document_id == first.document_id
    [hit] = (await library.recall(alice.id, "When does the gate open?", 5)).hits
    assert (hit.text, hit.document_version) == ("The gate opens at nine.", 2)
    assert len(originals()) == 1
    assert await indexed(index) == 1
    assert await rows(engine) == {"documents": 1, "document_versions": 1, "chunks": 3, "purge_outbox": 0}


async def test_h10_identical_bytes_make_one_version(
    library: KnowledgeBase, index: ChunkIndex, engine: AsyncEngine, alice: Principal, originals: Originals
) -> None:
    uploads = [library.upload(alice, "plan.txt", b"The gate opens at seven.") for _ in range(6)]
    results = await asyncio.gather(*uploads)
    assert len(set(results)) == 1
    [hit] = (await library.recall(alice.id, "gate", 5)).hits
    assert hit.document_version == 1
    assert (await indexed(index), len(originals())) == (1, 1)
    assert (await rows(engine))["document_versions"] == 1


async def test_h10_the_newest_of_two_processes_wins(
    library: KnowledgeBase,
    engine: AsyncEngine,
    index: ChunkIndex,
    embedder: GatedEmbedder,
    alice: Principal,
    data_dir: Path,
    originals: Originals,
) -> None:
    second = GatedEmbedder()
    other = KnowledgeBase(engine, index, second, KnowledgeConfig(), data_dir)
    embedder.gate.clear()
    older = asyncio.create_task(library.upload(alice, "plan.txt", b"The gate opens at seven."))
    await embedder.reached.wait()
    newer = await other.upload(alice, "plan.txt", b"The gate opens at nine.")
    embedder.gate.set()
    assert (await older).document_id == newer.document_id
    await second.aclose()
    assert await found(library, alice, "gate") == ["The gate opens at nine."]
    assert (await indexed(index), len(originals())) == (1, 1)
    assert (await rows(engine))["purge_outbox"] == 0


async def test_shared_and_private_of_one_name_are_two(
    library: KnowledgeBase, admin: Principal, alice: Principal
) -> None:
    shared = await library.upload(admin, "plan.txt", b"The shared gate opens at seven.")
    own = await library.upload(alice, "plan.txt", b"The private gate opens at nine.")
    assert shared.document_id != own.document_id
    assert len(await library.list_documents(alice)) == 2
    assert len(await library.list_documents(admin)) == 1


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.txt", b"", "empty_document"),
        ("a.txt", b" \n", "empty_document"),
        ("a.pdf", make_pdf([""]), "no_extractable_text"),
        ("a.pdf", b"%PDF-1.7 broken", "parse_failed"),
        ("a.txt", make_pdf(["Text"]), "type_mismatch"),
        ("a.exe", b"MZ", "type_mismatch"),
        ("a.txt", b"x" * 2_001, "too_large"),
    ],
)
async def test_a_refused_file_leaves_nothing(
    engine: AsyncEngine,
    index: ChunkIndex,
    embedder: GatedEmbedder,
    data_dir: Path,
    alice: Principal,
    originals: Originals,
    name: str,
    content: bytes,
    error: str,
) -> None:
    library = KnowledgeBase(engine, index, embedder, KnowledgeConfig(max_upload_bytes=2_000), data_dir)
    with pytest.raises(AppError) as caught:
        await library.upload(alice, name, content)
    assert caught.value.code == error
    assert await rows(engine) == NOTHING
    assert (await indexed(index), originals(), list((data_dir / "documents").iterdir())) == (0, [], [])
    assert not await library.has_documents(alice.id)


async def test_a_failed_replacement_keeps_the_old_version_and_the_reason(
    library: KnowledgeBase, engine: AsyncEngine, index: ChunkIndex, alice: Principal, originals: Originals
) -> None:
    await library.upload(alice, "plan.txt", b"The gate opens at seven.")
    with pytest.raises(DocumentError):
        await library.upload(alice, "plan.txt", b"   ")
    assert await found(library, alice, "gate") == ["The gate opens at seven."]
    assert (await indexed(index), len(originals())) == (1, 1)
    async with engine.connect() as connection:
        query = select(DocumentVersion.version, DocumentVersion.status, DocumentVersion.code)
        versions = {tuple(row) for row in await connection.execute(query)}
    assert versions == {(1, "ready", None), (2, "failed", "empty_document")}
    await library.upload(alice, "plan.txt", b"The gate opens at nine.")
    assert (await rows(engine))["document_versions"] == 1


async def test_a_failing_embedder_leaves_nothing(
    engine: AsyncEngine, index: ChunkIndex, data_dir: Path, alice: Principal, originals: Originals
) -> None:
    class Broken(GatedEmbedder):
        async def embed_passages(self, texts: object) -> list[list[float]]:
            raise ProviderError("provider_unavailable", retryable=True)

        async def embed_query(self, text: str) -> list[float]:
            raise ProviderError("provider_unavailable", retryable=True)

    broken, whole = Broken(), GatedEmbedder()
    failing = KnowledgeBase(engine, index, broken, KnowledgeConfig(), data_dir)
    with pytest.raises(ProviderError):
        await failing.upload(alice, "plan.txt", b"The gate opens at seven.")
    assert (await rows(engine), await indexed(index), originals()) == (NOTHING, 0, [])
    library = KnowledgeBase(engine, index, whole, KnowledgeConfig(), data_dir)
    await library.upload(alice, "plan.txt", b"The gate opens at seven.")
    recall = await failing.recall(alice.id, "When does the gate open?", 5)
    assert (recall.mode, len(recall.hits)) == ("sparse", 1)
    await broken.aclose()
    await whole.aclose()


async def test_a_cancelled_upload_leaves_nothing(
    library: KnowledgeBase,
    embedder: GatedEmbedder,
    engine: AsyncEngine,
    index: ChunkIndex,
    alice: Principal,
    originals: Originals,
) -> None:
    embedder.gate.clear()
    task = asyncio.create_task(library.upload(alice, "plan.txt", b"The gate opens at seven."))
    await embedder.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await rows(engine), await indexed(index), originals()) == (NOTHING, 0, [])


async def test_quota_counts_all_documents_of_the_owner(
    engine: AsyncEngine, index: ChunkIndex, embedder: GatedEmbedder, data_dir: Path, alice: Principal, bob: Principal
) -> None:
    library = KnowledgeBase(engine, index, embedder, KnowledgeConfig(max_bytes_per_user=40), data_dir)
    await library.upload(alice, "a.txt", b"The gate opens at seven.")
    with pytest.raises(TooLarge):
        await library.upload(alice, "b.txt", b"The gate opens at nine.")
    await library.upload(alice, "a.txt", b"The gate opens at seven or so.")
    await library.upload(bob, "b.txt", b"The gate opens at nine.")


async def left_by_a_killed_process(
    engine: AsyncEngine, index: ChunkIndex, embedder: GatedEmbedder, data_dir: Path, owner: Principal, text: str
) -> BegunVersion:
    """All that an upload has done before its last transaction."""
    content = text.encode()
    begun = await KnowledgeRepository(engine).begin(
        Upload(owner.id, "private", "plan.txt", "txt", "0" * 64, len(content)), 1_000_000
    )
    assert isinstance(begun, BegunVersion)
    write_atomic(document_path(data_dir, begun.document_id, begun.version_id), content)
    chunks = chunk_pages([Page(None, text)], begun.version_id, embedder.count_tokens)
    leaf = chunks[-1]
    [vector] = await embedder.embed_passages([leaf.text])
    await index.add([IndexRow(leaf.id, begun.version_id, owner.id, False, analyze(leaf.text), vector)])
    return begun


async def test_recovery_takes_back_what_a_killed_process_left(
    library: KnowledgeBase,
    engine: AsyncEngine,
    index: ChunkIndex,
    embedder: GatedEmbedder,
    data_dir: Path,
    alice: Principal,
    originals: Originals,
) -> None:
    await left_by_a_killed_process(engine, index, embedder, data_dir, alice, "The gate opens at seven.")
    assert await found(library, alice, "When does the gate open?") == []
    [info] = await library.list_documents(alice)
    assert info.status == "processing"
    await library.sweep()  # not old enough: its maker may live in another process
    assert (await indexed(index), len(originals())) == (1, 1)
    await library.recover(dead_after_seconds=0)
    await library.sweep()
    assert (await rows(engine), await indexed(index), originals()) == (NOTHING, 0, [])


async def test_recovery_keeps_the_version_that_answers(
    library: KnowledgeBase,
    engine: AsyncEngine,
    index: ChunkIndex,
    embedder: GatedEmbedder,
    data_dir: Path,
    alice: Principal,
    originals: Originals,
) -> None:
    await library.upload(alice, "plan.txt", b"The gate opens at seven.")
    begun = await left_by_a_killed_process(engine, index, embedder, data_dir, alice, "The gate opens at nine.")
    assert await found(library, alice, "When does the gate open?") == ["The gate opens at seven."]
    await library.recover(dead_after_seconds=0)
    await library.sweep()
    assert await found(library, alice, "When does the gate open?") == ["The gate opens at seven."]
    assert (await indexed(index), len(originals())) == (1, 1)
    assert begun.version == 2
    assert (await rows(engine))["purge_outbox"] == 0


async def test_a_renewed_version_is_not_taken_back(
    engine: AsyncEngine, index: ChunkIndex, embedder: GatedEmbedder, data_dir: Path, alice: Principal
) -> None:
    repository = KnowledgeRepository(engine)
    begun = await left_by_a_killed_process(engine, index, embedder, data_dir, alice, "The gate opens at seven.")
    await asyncio.sleep(0.3)
    assert [dead.version_id for dead in await repository.dead_ingests(timedelta(seconds=0.2))] == [begun.version_id]
    await repository.renew(begun)
    assert await repository.dead_ingests(timedelta(seconds=30)) == []


async def test_a_version_given_up_too_early_is_not_published(
    library: KnowledgeBase,
    embedder: GatedEmbedder,
    engine: AsyncEngine,
    index: ChunkIndex,
    alice: Principal,
    originals: Originals,
) -> None:
    embedder.gate.clear()
    task = asyncio.create_task(library.upload(alice, "plan.txt", b"The gate opens at seven."))
    await embedder.reached.wait()
    await library.recover(dead_after_seconds=0)
    await library.sweep()
    embedder.gate.set()
    with pytest.raises(NotFound):
        await task
    assert (await rows(engine), await indexed(index), originals()) == (NOTHING, 0, [])
