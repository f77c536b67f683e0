"""Passages and questions as JSON lines, checked before anything is started for them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from backend.text import is_blank

Id = Annotated[str, Field(min_length=1, max_length=500)]


class DatasetError(ValueError):
    """A file cannot be used; the text is one line that names the file and, where there is one, the line."""


class Passage(BaseModel):
    """A text to be found: a document of its own. Other keys are ignored."""

    model_config = ConfigDict(frozen=True)

    id: Id
    text: str
    lang: str | None = None

    @model_validator(mode="after")
    def _has_text(self) -> Self:
        if is_blank(self.text):
            raise ValueError("text is empty")
        return self


class Question(BaseModel):
    """A question with the passage that answers it, or graded ones; 0 is a judged passage that does not help.

    ``answer`` is what an answer has to hold: a text, or several of which one is enough.
    """

    model_config = ConfigDict(frozen=True)

    id: Id
    question: Annotated[str, Field(min_length=1)]
    passage_id: Id | None = None
    relevant: Mapping[str, Annotated[int, Field(ge=0, le=1000)]] | None = None
    answer: str | list[str] | None = None
    lang: str | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.passage_id is None) == (self.relevant is None):
            raise ValueError("either passage_id or relevant must be given")
        if not self.right_ids:
            raise ValueError("relevant names no passage with a grade above 0")
        return self

    @property
    def grades(self) -> dict[str, int]:
        """The grade of every judged passage."""
        return {self.passage_id: 1} if self.passage_id is not None else dict(self.relevant or {})

    @property
    def right_ids(self) -> frozenset[str]:
        """The passages that answer the question."""
        return frozenset(passage_id for passage_id, grade in self.grades.items() if grade > 0)

    @property
    def answers(self) -> list[str]:
        """The texts of which an answer should hold one; empty when none is known."""
        given = [self.answer] if isinstance(self.answer, str) else self.answer or []
        return [text for text in given if not is_blank(text)]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Ids are unique, and every passage that a question names is there."""

    passages: Sequence[Passage]
    questions: Sequence[Question]


def load_dataset(passages: Path, questions: Path, *, lang: str | None = None, sample: int | None = None) -> Dataset:
    """Both files; with ``lang`` what has that language, with ``sample`` so many questions, evenly spread over the file.

    Raises :class:`DatasetError`.
    """
    every_passage, every_question = _read(passages, Passage), _read(questions, Question)
    _check_known(questions, every_question, {passage.id for passage in every_passage})
    kept_passages = [passage for passage in every_passage if lang in (None, passage.lang)]
    kept_questions = [question for question in every_question if lang in (None, question.lang)]
    if not kept_passages or not kept_questions:
        raise DatasetError(f"{passages if not kept_passages else questions}: nothing has the lang {lang!r}")
    if lang is not None:
        _check_known(questions, kept_questions, {passage.id for passage in kept_passages}, f" of the lang {lang!r}")
    return Dataset(kept_passages, _spread(kept_questions, sample or len(kept_questions)))


_Item = TypeVar("_Item", Passage, Question)


def _read(path: Path, kind: type[_Item]) -> list[_Item]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path}: not UTF-8 text") from error
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror or type(error).__name__}") from error
    items = [(number, _item(path, number, line, kind)) for number, line in enumerate(lines, start=1) if line.strip()]
    if not items:
        raise DatasetError(f"{path}: the file is empty")
    counts = Counter(item.id for _, item in items)
    for number, item in reversed(items):
        if counts[item.id] > 1:
            raise DatasetError(f"{path}:{number}: the id {item.id!r} is there twice")
    return [item for _, item in items]


def _item(path: Path, number: int, line: str, kind: type[_Item]) -> _Item:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        text = first["msg"].removeprefix("Value error, ")
        raise DatasetError(f"{path}:{number}: {f'{where}: ' if where else ''}{text}") from None


def _check_known(path: Path, questions: Iterable[Question], known: set[str], of: str = "") -> None:
    for question in questions:
        if unknown := sorted(question.grades.keys() - known):
            raise DatasetError(f"{path}: question {question.id!r} names {unknown[0]!r}, which is no passage{of}")


def _spread(questions: Sequence[Question], count: int) -> list[Question]:
    """``count`` of the questions at equal distances, all when there are no more."""
    total = len(questions)
    return [questions[index * total // count] for index in range(count)] if count < total else list(questions)
