"""A library in memory: recall gives what the test put in, in that order."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid5

from langchain_core.language_models import BaseChatModel

from backend.infra.llm.extractive import ExtractiveChatModel
from backend.infra.rerank import Reranker
from backend.rag.config import RagConfig
from backend.rag.pipeline import RetrievalPipeline
from backend.rag.retrieve import Library

NAMESPACE = UUID("00000000-0000-0000-0000-0000000000aa")


def identify(name: str) -> UUID:
    """The same id for the same name."""
    return uuid5(NAMESPACE, name)


DOCUMENT = identify("document")


@dataclass(frozen=True)
class StoredPiece:
    """A chunk; ``rank`` and ``score`` are set when it is recalled."""

    chunk_id: UUID
    text: str
    level: int = 3
    parent_id: UUID | None = None
    root_id: UUID | None = None
    filename: str = "manual.pdf"
    page_number: int | None = 1
    heading: str | None = None
    document_id: UUID = DOCUMENT
    document_version: int = 1
    ordinal: int = 0
    score: float = 0.0
    rank: int = 0
    similarity: float | None = None
    arms: dict[str, int] = field(default_factory=dict)


def leaf(
    name: str, *, parent: str | None = None, root: str | None = None, level: int = 3, **fields: object
) -> StoredPiece:
    """A chunk named ``name`` whose text is that name unless given."""
    fields.setdefault("text", name)
    return StoredPiece(
        chunk_id=identify(name),
        level=level,
        parent_id=None if parent is None else identify(parent),
        root_id=None if root is None else identify(root),
        **fields,  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class FoundPieces:
    """What one recall found."""

    hits: list[StoredPiece]
    mode: str = "hybrid"


@dataclass
class MemoryLibrary:
    """``found`` is what every recall finds, best first; ``stored`` what can be fetched by id."""

    found: list[StoredPiece] = field(default_factory=list)
    stored: list[StoredPiece] = field(default_factory=list)
    documents: bool = True
    recalls: list[tuple[UUID, str, int, int]] = field(default_factory=list)

    async def recall(
        self, user_id: UUID, query: str, limit: int, level: int = 3, *, collections: Collection[UUID] | None = None
    ) -> FoundPieces:
        self.recalls.append((user_id, query, limit, level))
        ranked = [replace(piece, rank=rank, score=1 / (60 + rank)) for rank, piece in enumerate(self.found, start=1)]
        return FoundPieces(ranked[:limit])

    async def chunks(self, user_id: UUID, ids: list[UUID]) -> dict[UUID, StoredPiece]:
        return {piece.chunk_id: piece for piece in self.stored if piece.chunk_id in ids}

    async def has_documents(self, user_id: UUID) -> bool:
        return self.documents


def undecided() -> ExtractiveChatModel:
    """A model without rules for decisions: each step of retrieval takes its default."""
    return ExtractiveChatModel(answer_rule=lambda question, passages: "")


def pipeline(
    library: Library,
    config: RagConfig | None = None,
    reranker: Reranker | None = None,
    *,
    fast: BaseChatModel | None = None,
    grade: BaseChatModel | None = None,
) -> RetrievalPipeline:
    """A pipeline whose models decide nothing unless given."""
    return RetrievalPipeline(
        library, config or RagConfig(), reranker, fast=fast or undecided(), grade=grade or undecided()
    )
