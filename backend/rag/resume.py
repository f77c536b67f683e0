"""Going on with a question after its user has answered a question back."""

from dataclasses import dataclass

from backend.schemas.chat import HitlResumeState

MAX_CLARIFICATIONS = 3
"""Questions back for one question; then it is answered with what was found, or honestly not at all."""

MAX_ANSWER_CHARS = 500
"""Of each answer, in the refined question: an answer names a choice or fills a slot, it is not a document."""


@dataclass(frozen=True, slots=True)
class HitlResume:
    """What an interrupted retrieval goes on with: ``question`` as it was first looked up, ``answers`` of the user to
    the questions back so far, oldest first (at least one), and ``state`` as the last of these questions left it."""

    question: str
    answers: list[str]
    state: HitlResumeState


def refined_question(resume: HitlResume) -> str:
    """The question with the answers after it, to be searched with: ``How long is the warranty? Model X; in Spain``."""
    return f"{resume.question} {'; '.join(' '.join(answer.split())[:MAX_ANSWER_CHARS] for answer in resume.answers)}"


def may_ask_again(resume: HitlResume | None) -> bool:
    """Whether a further question back is allowed. If not, ``clarify`` and ``scope_select`` become ``answer`` with
    evidence and ``no_knowledge`` without."""
    return resume is None or len(resume.answers) < MAX_CLARIFICATIONS
