"""What the model steps of retrieval decide, as a model returns it. A provider fills these by structured output, the
extractive model by rules (``rag/rules/``); whatever cannot be read falls to the documented default of its step.
"""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from backend.catalogue import Language
from backend.rag.retrieve import Candidate

Complexity = Literal["simple", "complex"]
Relevance = Literal["none", "weak", "strong"]
Answerability = Literal["none", "partial", "sufficient"]
Ambiguity = Literal["none", "missing_slot", "multiple_candidates"]
Route = Literal["answer", "rewrite", "clarify", "scope_select", "no_knowledge"]

MAX_SUB_QUESTIONS = 4
MAX_OPTIONS = 6

DECISION_INPUT = "decision_input"
"""Key of ``HumanMessage.additional_kwargs`` under which a step hands its :class:`DecisionInput` to the rules of the
extractive model; a provider never sees it."""


class _Decision(BaseModel):
    """Unknown keys are ignored: a model adds what it likes."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class PlanDecision(_Decision):
    """Whether the question is one fact or several; 2 to 4 ``sub_questions`` if ``complex``, complete in themselves."""

    complexity: Complexity
    reason: str = ""
    sub_questions: list[str] = Field(default_factory=list)


class GradeDecision(_Decision):
    """What the passages are worth for the question, and where to go. ``confidence`` is in [0, 1].

    ``missing_slots`` name what the question leaves open, ``options`` what the user may choose from, ``prompt`` the
    question back; ``route`` is a wish that plain rules resolve.
    """

    relevance: Relevance
    answerability: Answerability
    ambiguity: Ambiguity = "none"
    route: Route = "answer"
    confidence: float = Field(default=0.5, ge=0, le=1)
    missing_slots: list[str] = Field(default_factory=list)
    prompt: str | None = None
    options: list[str] = Field(default_factory=list)
    reason: str = ""


class RewriteDecision(_Decision):
    """A second query: a more general question (``step_back``) or a passage as it might stand in a document (``hyde``).

    ``text`` is that question or passage. It is only searched with, never shown as evidence.
    """

    method: Literal["step_back", "hyde"]
    text: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DecisionInput:
    """What a step decides on, for rules: ``candidates`` best first (empty for a plan)."""

    question: str
    language: Language
    candidates: list[Candidate] = field(default_factory=list[Candidate])
