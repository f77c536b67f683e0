"""Upload, list, replace, delete, recall."""

from collections.abc import Callable
from pathlib import Path

import pytest

from backend.knowledge.service import KnowledgeBase
from backend.schemas.auth import Principal
from tests.knowledge.conftest import make_pdf

PUMPS = [
    "The pump of station nine delivers forty litres a second.",
    "",
    "Valve seventeen is closed every night at ten.",
]


async def test_pdf_is_recalled_with_its_page(library: KnowledgeBase, admin: Principal, alice: Principal) -> None:
    result = await library.upload(admin, "Pumps.PDF", make_pdf(PUMPS))
    assert (result.filename, result.chunks_processed) == ("Pumps.PDF", 2)

    recall = await library.recall(alice.id, "When is valve seventeen closed?", 5)

    best = recall.hits[0]
    assert recall.mode == "hybrid"
    assert (best.page_number, best.level, best.rank, best.document_version) == (3, 3, 1, 1)
    assert best.text == PUMPS[2]
    assert best.arms == {"dense": 1, "sparse": 1}
    assert best.score == pytest.approx(2 / 61)
    [info] = await library.list_documents(alice)
    assert (info.filename, info.file_type, info.chunk_count, info.pages) == ("Pumps.PDF", "pdf", 2, 3)
    assert (info.visibility, info.status, info.document_id) == ("shared", "ready", result.document_id)
