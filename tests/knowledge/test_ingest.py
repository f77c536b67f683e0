"""Making versions: replace, fail, get killed."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.errors import (
    AppError,
    DocumentError,
    NotFound,
    ProviderError,
    TooLarge,
)
from backend.infra.database.tables import DocumentVersion, Job
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex
from backend.knowledge.jobs import MAX_ATTEMPTS
from backend.knowledge.repository import KnowledgeRepository, Upload
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
from tests.support.waiting import until


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


async def test_who_stops_waiting_does_not_end_the_upload(
    library: KnowledgeBase, embedder: GatedEmbedder, alice: Principal
) -> None:
    embedder.gate.clear()
    task = asyncio.create_task(library.upload(alice, "plan.txt", b"The gate opens at seven."))
    await embedder.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    embedder.gate.set()
    [job] = await library.jobs.newest(alice, "upload")
    await library.jobs._worker.finish(job.id)
    assert await found(library, alice, "gate") == ["The gate opens at seven."]


async def test_quota_counts_all_documents_of_the_owner(
    engine: AsyncEngine, index: ChunkIndex, embedder: GatedEmbedder, data_dir: Path, alice: Principal, bob: Principal
) -> None:
    library = KnowledgeBase(engine, index, embedder, KnowledgeConfig(max_bytes_per_user=40), data_dir)
    await library.upload(alice, "a.txt", b"The gate opens at seven.")
    with pytest.raises(TooLarge):
        await library.upload(alice, "b.txt", b"The gate opens at nine.")
    await library.upload(alice, "a.txt", b"The gate opens at seven or so.")
    await library.upload(bob, "b.txt", b"The gate opens at nine.")


def long_text(leaves: int) -> bytes:
    return "\n\n".join(f"# Part {n}\n\n{SENTENCE} It is number {n}." for n in range(leaves)).encode()


SENTENCE = (
    "The pump of the northern station delivers forty litres a second, as the plan of the works has said for years. " * 4
)


class Counting(GatedEmbedder):
    """Counts passages; ``hold`` closes the gate after the first batch."""

    def __init__(self, *, hold: bool) -> None:
        super().__init__()
        self.passages = 0
        self.hold = hold

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        if self.hold and self.passages:
            self.gate.clear()
        vectors = await super().embed_passages(texts)
        self.passages += len(texts)
        return vectors


async def break_off(engine: AsyncEngine) -> None:
    """What a kill leaves: a running job whose lease ends."""
    async with engine.begin() as connection:
        await connection.execute(update(Job).values(due_at=func.now()))


async def test_b16_another_worker_goes_on_after_the_last_batch(
    engine: AsyncEngine, index: ChunkIndex, data_dir: Path, alice: Principal
) -> None:
    killed, second = Counting(hold=True), Counting(hold=False)
    first = KnowledgeBase(engine, index, killed, KnowledgeConfig(), data_dir)
    other = KnowledgeBase(engine, index, second, KnowledgeConfig(), data_dir)
    job = await first.jobs.submit(alice, "plan.md", long_text(100))
    frozen = asyncio.create_task(first.jobs._worker.finish(job.id))
    await until(lambda: killed.passages > 0 and not killed.gate.is_set())
    await break_off(engine)
    ended = await other.jobs._worker.finish(job.id)
    assert (ended.status, ended.attempts, ended.processed_chunks) == ("completed", 2, ended.total_chunks)
    assert second.passages == ended.total_chunks - killed.passages > 0
    killed.gate.set()  # the frozen worker wakes up: what it would write is not taken
    assert (await frozen).status == "completed"
    assert (await indexed(index), (await rows(engine))["purge_outbox"]) == (ended.total_chunks, 0)
    await killed.aclose()
    await second.aclose()


async def test_b16_no_job_is_tried_for_ever(
    library: KnowledgeBase, engine: AsyncEngine, index: ChunkIndex, alice: Principal, originals: Originals
) -> None:
    job = await library.jobs.submit(alice, "plan.txt", b"The gate opens at seven.")
    async with engine.begin() as connection:
        await connection.execute(update(Job).values(attempts=MAX_ATTEMPTS))
    ended = await library.jobs._worker.finish(job.id)
    assert (ended.status, ended.code) == ("failed", "internal_error")
    assert (await rows(engine), await indexed(index), originals()) == (NOTHING, 0, [])


async def test_killed_while_the_file_was_written(
    library: KnowledgeBase, engine: AsyncEngine, alice: Principal, originals: Originals
) -> None:
    accepted = await KnowledgeRepository(engine).begin(
        Upload(alice.id, "private", "plan.txt", "txt", "0" * 64, 24), 1_000_000, "a worker that is gone"
    )
    [info] = await library.list_documents(alice)
    assert info.status == "processing"
    await break_off(engine)
    ended = await library.jobs._worker.finish(accepted.job_id)
    assert (ended.status, ended.code) == ("failed", "parse_failed")
    assert (await rows(engine), originals()) == (NOTHING, [])


async def test_a_cancelled_job_leaves_nothing(
    library: KnowledgeBase, engine: AsyncEngine, index: ChunkIndex, alice: Principal, originals: Originals
) -> None:
    waiting = await library.jobs.submit(alice, "plan.txt", b"The gate opens at seven.")
    ended = await library.jobs.cancel(alice, waiting.id)
    assert (ended.status, ended.code) == ("failed", "cancelled")
    assert (await rows(engine), await indexed(index), originals()) == (NOTHING, 0, [])
    assert (await library.jobs.cancel(alice, waiting.id)).status == "failed"


async def test_h10_ten_uploads_of_the_same_bytes_are_one(
    library: KnowledgeBase, engine: AsyncEngine, alice: Principal
) -> None:
    jobs = await asyncio.gather(
        *(library.jobs.submit(alice, "plan.txt", b"The gate opens at seven.") for _ in range(10))
    )
    assert len({job.version_id for job in jobs}) == 1
    for job in jobs:
        await library.jobs._worker.finish(job.id)
    counts = await rows(engine)
    assert (counts["documents"], counts["document_versions"]) == (1, 1)


async def test_j03_a_job_is_its_owners(
    library: KnowledgeBase, alice: Principal, bob: Principal, admin: Principal
) -> None:
    job = await library.jobs.submit(alice, "plan.txt", b"The gate opens at seven.")
    for other in (bob, admin):
        with pytest.raises(NotFound):
            await library.jobs.get(other, "upload", job.id)
        with pytest.raises(NotFound):
            await library.jobs.cancel(other, job.id)
        assert await library.jobs.newest(other, "upload") == await library.jobs.changed(other, None) == []
    assert (await library.jobs.get(alice, "upload", job.id)).id == job.id
