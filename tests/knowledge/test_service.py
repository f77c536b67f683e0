"""Upload, list, delete, recall."""

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.errors import (
    DocumentError,
    Forbidden,
    NotFound,
    StorageUnavailable,
    TypeMismatch,
    ValidationFailed,
)
from backend.infra.analyze import analyze
from backend.knowledge.index.base import ChunkIndex, IndexRow
from backend.knowledge.job_desk import clean_filename
from backend.knowledge.service import KnowledgeBase
from backend.schemas.auth import Principal
from tests.knowledge.conftest import (
    NOTHING,
    PUMPS,
    GatedEmbedder,
    Originals,
    found,
    indexed,
    make_account,
    make_pdf,
    rows,
)


async def test_pdf_is_recalled_with_its_page(library: KnowledgeBase, admin: Principal, alice: Principal) -> None:
    result = await library.upload(admin, "Pumps.PDF", make_pdf(PUMPS))
    assert (result.filename, result.chunks_processed) == ("Pumps.PDF", 2)

    recall = await library.recall(alice.id, "When is valve seventeen closed?", 5)

    best = recall.hits[0]
    assert recall.mode == "hybrid"
    assert (best.page_number, best.level, best.rank, best.document_version) == (3, 3, 1, 1)
    assert (best.text, best.document_id, best.filename) == (PUMPS[2], result.document_id, "Pumps.PDF")
    assert best.arms == {"dense": 1, "sparse": 1}
    assert best.score == pytest.approx(2 / 11)
    [info] = await library.list_documents(alice)
    assert (info.filename, info.file_type, info.chunk_count, info.pages) == ("Pumps.PDF", "pdf", 2, 3)
    assert (info.visibility, info.status, info.document_id) == ("shared", "ready", result.document_id)
    assert info.model_dump(mode="json")["uploaded_at"].endswith("Z")


async def test_chinese_in_gbk_is_recalled(library: KnowledgeBase, alice: Principal, tmp_path: Path) -> None:
    path = tmp_path / "upload"
    path.write_bytes("水泵的压力是三百千帕。\n\n阀门在夜间十点关闭。".encode("gbk"))
    await library.upload(alice, "手册.txt", path)
    hits = (await library.recall(alice.id, "阀门什么时候关闭？", 5)).hits
    assert hits[0].page_number is None
    assert "阀门在夜间十点关闭。" in hits[0].text
    assert path.exists()


async def test_parents_serve_the_merge(library: KnowledgeBase, alice: Principal) -> None:
    text = "\n\n".join(f"# Part {n}\n\n" + f"Pump {n} delivers water to the tank of the town. " * 30 for n in range(3))
    result = await library.upload(alice, "parts.md", text.encode())
    hits = (await library.recall(alice.id, "pump 2 delivers water", 20)).hits
    assert len(hits) == result.chunks_processed
    parents = {hit.parent_id for hit in hits if hit.parent_id}
    counts = await library.children_count(alice.id, parents)
    assert sum(counts.values()) == result.chunks_processed
    assert set(counts) == parents
    chunks = await library.chunks(alice.id, parents)
    assert {chunk.level for chunk in chunks.values()} == {2}
    assert all(hit.text in chunks[hit.parent_id].text for hit in hits if hit.parent_id)
    middle = (await library.recall(alice.id, "pump 2 delivers water", 20, level=2)).hits
    assert {hit.chunk_id for hit in middle} == parents
    assert [hit.rank for hit in middle] == list(range(1, len(parents) + 1))
    large = (await library.recall(alice.id, "pump 2 delivers water", 20, level=1)).hits
    assert {hit.chunk_id for hit in large} == {hit.root_id for hit in hits}
    assert await library.chunks(alice.id, []) == {}
    assert await library.children_count(alice.id, []) == {}


async def test_i06_a_deleted_document_is_never_recalled(
    library: KnowledgeBase,
    engine: AsyncEngine,
    index: ChunkIndex,
    admin: Principal,
    alice: Principal,
    originals: Originals,
) -> None:
    await library.upload(admin, "pumps.pdf", make_pdf(PUMPS))
    hits = (await library.recall(alice.id, "valve seventeen", 5)).hits
    result = await library.delete(admin, "pumps.pdf")
    assert (result.filename, result.chunks_deleted) == ("pumps.pdf", 2)
    assert await found(library, alice, "valve seventeen") == []
    assert await library.chunks(alice.id, [hit.chunk_id for hit in hits]) == {}
    assert await library.children_count(alice.id, [hit.parent_id for hit in hits if hit.parent_id]) == {}
    assert not await library.has_documents(alice.id)
    assert (await rows(engine), await indexed(index), originals()) == (NOTHING, 0, [])
    with pytest.raises(NotFound):
        await library.delete(admin, "pumps.pdf")


async def test_i06_deletion_holds_while_the_index_is_down_and_is_retried(
    library: KnowledgeBase,
    index: ChunkIndex,
    engine: AsyncEngine,
    admin: Principal,
    originals: Originals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await library.upload(admin, "pumps.pdf", make_pdf(PUMPS))

    async def down(version_id: UUID) -> None:
        raise StorageUnavailable(retry_after=1)

    with monkeypatch.context() as patch:
        patch.setattr(index, "delete_version", down)
        await library.delete(admin, "pumps.pdf")
        await library.sweep()
    assert (await indexed(index), len(originals())) == (2, 1)
    assert await found(library, admin, "valve seventeen") == []
    await library.sweep()
    assert (await rows(engine), await indexed(index), originals()) == (NOTHING, 0, [])


async def test_i06_a_document_deleted_during_its_upload_stays_deleted(
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
    assert (await library.delete(alice, "plan.txt")).chunks_deleted == 0
    embedder.gate.set()
    with pytest.raises(NotFound):
        await task
    assert (await rows(engine), await indexed(index), originals()) == (NOTHING, 0, [])


async def test_who_may_delete_what(
    library: KnowledgeBase, engine: AsyncEngine, admin: Principal, alice: Principal, bob: Principal
) -> None:
    shared = await library.upload(admin, "plan.txt", b"The shared gate opens at seven.")
    private = await library.upload(alice, "plan.txt", b"The private gate opens at nine.")
    own = await library.upload(admin, "plan.txt", b"The admin's own gate.", "private")

    with pytest.raises(Forbidden):
        await library.delete(bob, "plan.txt")
    for principal in (admin, bob):
        with pytest.raises(NotFound):
            await library.delete(principal, "plan.txt", private.document_id)
    with pytest.raises(NotFound):
        await library.delete(admin, "other.txt", shared.document_id)
    with pytest.raises(NotFound):
        await library.delete(bob, "plan.txt", uuid4())
    assert (await rows(engine))["documents"] == 3

    await library.delete(alice, "plan.txt")
    with pytest.raises(Forbidden):
        await library.delete(alice, "plan.txt")
    await library.delete(admin, "plan.txt")
    assert [info.document_id for info in await library.list_documents(admin)] == [shared.document_id]
    assert own.document_id != shared.document_id
    await library.delete(admin, "plan.txt", shared.document_id)
    assert await library.list_documents(admin) == []


async def test_visibility(library: KnowledgeBase, admin: Principal, alice: Principal) -> None:
    with pytest.raises(Forbidden):
        await library.upload(alice, "a.txt", b"Words.", "shared")
    await library.upload(admin, "a.txt", b"Words.")
    await library.upload(admin, "b.txt", b"Words.", "private")
    assert [info.filename for info in await library.list_documents(alice)] == ["a.txt"]
    assert [info.filename for info in await library.list_documents(admin)] == ["b.txt", "a.txt"]


async def test_j03_foreign_private_chunks_are_never_recalled(
    library: KnowledgeBase, engine: AsyncEngine, alice: Principal, bob: Principal
) -> None:
    await library.upload(alice, "secret.txt", b"The code of the vault is 7319.")
    theirs = (await library.recall(alice.id, "code of the vault", 5)).hits
    assert len(theirs) == 1
    ids = [theirs[0].chunk_id, *(value for value in (theirs[0].parent_id, theirs[0].root_id) if value)]
    admin = await make_account(engine, "eve", "admin")
    for other in (bob, admin):
        assert await found(library, other, "code of the vault 7319") == []
        assert await library.chunks(other.id, ids) == {}
        assert await library.children_count(other.id, ids) == {}
        assert not await library.has_documents(other.id)
        assert await library.list_documents(other) == []
    assert len(await library.chunks(alice.id, ids)) == 3


async def test_j03_the_owner_is_checked_in_postgres_too(
    library: KnowledgeBase, index: ChunkIndex, engine: AsyncEngine, alice: Principal, bob: Principal
) -> None:
    """An index row that wrongly says "shared" opens nothing."""
    await library.upload(alice, "secret.txt", b"The code of the vault is 7319.")
    [hit] = (await library.recall(alice.id, "vault", 5)).hits
    await index.add([IndexRow(hit.chunk_id, uuid4(), bob.id, True, "vault code", [1.0] + [0.0] * 383)])
    assert await found(library, bob, "vault code") == []


HOSTILE_NAMES = [
    ("../../x.txt", "x.txt"),
    ("/tmp/x.txt", "x.txt"),
    ("..\\..\\x.txt", "x.txt"),
    ("%2e%2e/x.txt", "x.txt"),
    ("....//x.txt", "x.txt"),
    ("C:\\x.txt", "x.txt"),
    ("\\\\host\\share\\x.txt", "x.txt"),
    ("a\nb\x00\x1b[31m\u202e.txt", "ab[31m.txt"),
    ("é" * 200 + ".txt", "é" * 125 + ".txt"),
]


@pytest.mark.parametrize(("name", "stored"), HOSTILE_NAMES)
def test_h07_only_the_last_part_of_a_name_is_kept(name: str, stored: str) -> None:
    assert clean_filename(name) == stored
    assert len(stored.encode()) <= 255


@pytest.mark.parametrize("name", ["", "..", ".", "a/", "\x00", "x/..", "  "])
def test_h07_a_name_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValidationFailed):
        clean_filename(name)


async def test_h07_no_name_is_ever_part_of_a_path(
    library: KnowledgeBase, engine: AsyncEngine, data_dir: Path, alice: Principal, originals: Originals
) -> None:
    canary = data_dir / "x.txt"
    canary.write_text("canary")
    around = sorted(data_dir.parent.glob("x*"))
    for name in ("../../x.txt", "..\\x.txt", str(canary)):
        result = await library.upload(alice, name, f"Uploaded as {len(name)}.".encode())
        assert result.filename == "x.txt"
    [original] = originals()
    assert original.parent.parent == data_dir / "documents"
    assert UUID(original.name)
    assert UUID(original.parent.name) == result.document_id
    for name in ("../../x.txt", str(canary), "..%2fx.txt", "../documents"):
        with pytest.raises(NotFound):
            await library.delete(alice, name)
    await library.delete(alice, "x.txt")
    assert canary.read_text() == "canary"
    assert sorted(data_dir.parent.glob("x*")) == around
    assert await rows(engine) == NOTHING


async def test_d01_nul_in_text_and_name(library: KnowledgeBase, alice: Principal) -> None:
    content = b"# Be\x00low\n\nThe ga\x00te opens at seven."
    result = await library.upload(alice, "pl\x00an.md", content)
    assert result.filename == "plan.md"
    [hit] = (await library.recall(alice.id, "ga\x00te \ud800", 5)).hits
    assert (hit.text, hit.heading) == ("# Below\n\nThe gate opens at seven.", "Below")
    assert (await library.delete(alice, "pl\x00an.md")).filename == "plan.md"


SAYING_NOTHING = [
    "",
    "   ",
    "what is the",
    "who are they?",
    "的了吗",
    "?!... --",
    "🎉🎉",
    "\x00",
    "\ud800",
    "''",
    '" OR *',
]


async def test_i01_an_empty_library_finds_nothing(library: KnowledgeBase, alice: Principal) -> None:
    assert not await library.has_documents(alice.id)
    for query in [*SAYING_NOTHING, "When does the gate open?"]:
        assert (await library.recall(alice.id, query, 5)).hits == []
    assert await library.list_documents(alice) == []


async def test_i01_queries_that_say_nothing_find_nothing(library: KnowledgeBase, alice: Principal) -> None:
    await library.upload(alice, "plan.txt", "What is the gate? It opens at seven. 门的开放时间是七点。".encode())
    for query in SAYING_NOTHING:
        assert (await library.recall(alice.id, query, 5)).hits == []
    for query in ("gate", "开放时间", "x" * 100_000, "' OR 1=1 --", "gate AND NOT (opens OR *)"):
        assert len((await library.recall(alice.id, query, 5)).hits) == 1


async def test_i01_nothing_is_found_when_all_are_deleted_or_failed(library: KnowledgeBase, alice: Principal) -> None:
    await library.upload(alice, "plan.txt", b"The gate opens at seven.")
    await library.delete(alice, "plan.txt")
    with pytest.raises(DocumentError):
        await library.upload(alice, "blank.txt", b" ")
    assert await found(library, alice, "When does the gate open?") == []
    assert not await library.has_documents(alice.id)


async def test_dead_index_rows_do_not_crowd_out_live_ones(
    library: KnowledgeBase, index: ChunkIndex, embedder: GatedEmbedder, alice: Principal
) -> None:
    text = "The gate opens at seven."
    await library.upload(alice, "plan.txt", text.encode())
    [vector] = await embedder.embed_passages([text])
    dead = [IndexRow(uuid4(), uuid4(), alice.id, True, analyze(text + " gate gate"), vector) for _ in range(200)]
    await index.add(dead)
    assert await found(library, alice, "When does the gate open?") == [text]


async def test_unknown_types_are_refused_before_anything_is_stored(library: KnowledgeBase, alice: Principal) -> None:
    with pytest.raises(TypeMismatch):
        await library.upload(alice, "run.exe", b"words")
