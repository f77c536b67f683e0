"""A pipeline over a library in memory and a provider that plays a script, and what was seen of its run."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from backend.catalogue import Language
from backend.rag.config import RagConfig
from backend.rag.pipeline import RagResult
from backend.rag.resume import HitlResume
from backend.schemas.chat import normalize_rag_trace
from tests.rag.library import FoundPieces, MemoryLibrary, StoredPiece, leaf, pipeline
from tests.rag.models import fast_model
from tests.support.fake_llm import FakeLLM

USER = uuid4()
PLAIN = "How long is the warranty?"
SEVERAL = "Compare the warranty of the pump and the mixer"


class Steps:
    """Collects what is emitted: labels with details, and the groups."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []
        self.groups: list[tuple[str | None, str | None, str]] = []

    def __call__(
        self, icon: str, label: str, detail: str = "", *, group: str | None = None, group_label: str | None = None
    ) -> None:
        self.seen.append((label, detail))
        self.groups.append((group, group_label, label))

    @property
    def labels(self) -> list[str]:
        return [label for label, _ in self.seen]


@dataclass
class QueryLibrary(MemoryLibrary):
    """``by_query``: what a query finds; any other finds ``found``."""

    by_query: dict[str, list[StoredPiece]] = field(default_factory=dict[str, list[StoredPiece]])

    async def recall(self, user_id: UUID, query: str, *args: Any, **kwargs: Any) -> FoundPieces:
        asked = MemoryLibrary(self.by_query.get(query, self.found), recalls=self.recalls)
        return await asked.recall(user_id, query, *args, **kwargs)


def library(*names: str) -> MemoryLibrary:
    """Leaves of those names."""
    return MemoryLibrary([leaf(name) for name in names])


async def ask(
    llm: FakeLLM,
    found: MemoryLibrary,
    question: str = PLAIN,
    *,
    steps: Steps | None = None,
    language: Language = "en",
    resume: HitlResume | None = None,
    **settings: Any,
) -> RagResult:
    """One question whose decisions ``llm`` makes. Every field of its trace is a declared one."""
    async with fast_model(llm) as model:
        made = pipeline(found, RagConfig(**settings), fast=model, grade=model)
        result = await made.run(question, USER, language, steps or Steps(), resume=resume)
    assert normalize_rag_trace(result.trace) == result.trace
    assert result.route == result.trace["route"]
    return result
