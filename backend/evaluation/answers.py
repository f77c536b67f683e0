"""How good the answers are: whole turns of the chat, first over the whole library, then without the right passages."""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from pydantic import BaseModel

from backend.catalogue import choose_language
from backend.evaluation.dataset import Question
from backend.evaluation.library import Library, Progress, in_parallel
from backend.schemas.chat import ChatRequest, ChatResponse

TURNS = 4
"""Questions that are answered at once; a provider takes its time."""


class RemovedReport(BaseModel):
    """Questions asked when no passage that answers them was left. ``not_answered`` is the share of those that got
    neither a citation nor the expected text; a question back is no answer."""

    questions: int
    passages: int
    not_answered: float | None


class AnswersReport(BaseModel):
    """Shares of the questions, ``None`` of none.

    ``contains``: the answer holds the expected text (of the questions that have one). ``answered``: it cites
    something. ``asked_back``: it is a question. ``citation_precision``: the share of all citations that name a right
    passage. ``failed`` counts the turns that ended with an error, in both passes, by its code.
    """

    questions: int
    passages: int
    contains: float | None
    answered: float | None
    asked_back: float | None
    citation_precision: float | None
    removed: RemovedReport
    failed: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Turn:
    """One answer. ``cited`` has the passages of its citations; ``holds`` is ``None`` when nothing is expected."""

    question: Question
    status: str
    error: str | None
    holds: bool | None
    cited: list[str]
    asked_back: bool

    @property
    def right(self) -> int:
        """How many of the citations name a right passage."""
        return sum(passage in self.question.right_ids for passage in self.cited)

    @property
    def answered(self) -> bool:
        return bool(self.cited) and not self.asked_back

    @property
    def refused(self) -> bool:
        return self.status == "completed" and not self.answered and (self.asked_back or not self.holds)


async def measure_answers(
    library: Library, questions: Sequence[Question], passages: int, advance: Progress
) -> AnswersReport:
    """Asks every question, then removes every second group of right passages and asks again what they answered.

    ``advance`` is called after each of :func:`turns_of` turns.
    """
    first = await _ask_all(library, questions, "all", advance)
    again, removed = removed_half(questions)
    await library.remove(removed)
    second = await _ask_all(library, again, "removed", advance)
    citations = sum(len(turn.cited) for turn in first)
    return AnswersReport(
        questions=len(questions),
        passages=passages,
        contains=_share([turn.holds for turn in first if turn.holds is not None]),
        answered=_share([turn.answered for turn in first]),
        asked_back=_share([turn.asked_back for turn in first]),
        citation_precision=round(sum(turn.right for turn in first) / citations, 4) if citations else None,
        removed=RemovedReport(
            questions=len(again), passages=len(removed), not_answered=_share([turn.refused for turn in second])
        ),
        failed=dict(Counter(turn.error for turn in [*first, *second] if turn.error is not None)),
    )


def turns_of(questions: Sequence[Question]) -> int:
    """How many turns a measurement of ``questions`` takes."""
    return len(questions) + len(removed_half(questions)[0])


def removed_half(questions: Sequence[Question]) -> tuple[list[Question], list[str]]:
    """The questions that are asked again, and the passages to remove before: the right ones of every second group of
    questions with the same ones, so that the library keeps its kind and about half its size."""
    groups = list(dict.fromkeys(question.right_ids for question in questions))
    removed = {passage for group in groups[::2] for passage in group}
    return [question for question in questions if question.right_ids <= removed], sorted(removed)


async def _ask_all(library: Library, questions: Sequence[Question], name: str, advance: Progress) -> list[_Turn]:
    numbered = [(question, f"{name}-{number}") for number, question in enumerate(questions)]
    return await in_parallel(numbered, TURNS, lambda item: _ask(library, *item), advance)


async def _ask(library: Library, question: Question, session_id: str) -> _Turn:
    request = ChatRequest(message=question.question, session_id=session_id)
    started = await library.chat.start_turn(library.principal, request, choose_language(question.lang))
    answer = await library.chat.answer(library.principal, started)
    return _Turn(
        question=question,
        status=answer.status,
        error=answer.error.code if answer.error is not None else None,
        holds=holds(answer.response, question.answers) if question.answers else None,
        cited=_cited(library, answer),
        asked_back=answer.hitl is not None,
    )


def _cited(library: Library, answer: ChatResponse) -> list[str]:
    ids = [citation.document_id for citation in answer.citations]
    return [library.passage_of(UUID(document_id)) for document_id in ids if document_id is not None]


def holds(text: str, expected: Sequence[str]) -> bool:
    """Whether one of ``expected`` occurs in ``text``, whatever the case, width, spaces and punctuation; "24" is not in
    "240"."""
    inside = _normalized(text)
    return any(re.search(_whole(_normalized(one)), inside) is not None for one in expected)


def _whole(text: str) -> str:
    """A pattern for ``text`` that ends where its words end; Han characters are words of their own."""
    start = r"(?<![a-z0-9])" if re.match("[a-z0-9]", text) else ""
    end = r"(?![a-z0-9])" if re.search("[a-z0-9]$", text) else ""
    return f"{start}{re.escape(text)}{end}"


def _normalized(text: str) -> str:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return re.sub(r"[\W_]+", " ", folded).strip() or folded


def _share(values: Sequence[bool]) -> float | None:
    return round(sum(values) / len(values), 4) if values else None
