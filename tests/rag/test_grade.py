import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from backend.rag.decisions import Ambiguity, Answerability, GradeDecision, Relevance, Route
from backend.rag.grade import Evidence, Resolved, question_back, resolve_route, scope_options, valid_options
from backend.rag.retrieve import Candidate, candidates
from tests.rag.library import leaf

PAGE = Path(__file__).parents[2] / "docs" / "retrieval.md"


def table() -> list[list[str]]:
    """The rows of the table of routes, without its head."""
    text = PAGE.read_text().partition("<!-- routes -->")[2].partition("<!-- end of routes -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
    return rows[2:]


def documented(given: list[str]) -> Resolved:
    for row in table():
        if all(cell == "any" or value in cell.split(", ") for value, cell in zip(given, row, strict=False)):
            return Resolved(row[-2], row[-1])  # type: ignore[arg-type]
    raise AssertionError(f"no row for {given}")


def inputs() -> Iterator[tuple[str, GradeDecision | None, bool, bool, bool]]:
    flags = list(itertools.product([True, False], repeat=3))
    for evidence, (rewrite, ask, choices) in itertools.product(["nothing", "below_floor", "ungraded"], flags):
        yield evidence, None, rewrite, ask, choices
    kinds = (get_args(kind) for kind in (Relevance, Answerability, Ambiguity, Route))
    for (relevance, answerability, ambiguity, route), (rewrite, ask, choices) in itertools.product(
        itertools.product(*kinds), flags
    ):
        grade = GradeDecision(relevance=relevance, answerability=answerability, ambiguity=ambiguity, route=route)
        yield "graded", grade, rewrite, ask, choices


def test_the_documented_table_is_what_the_function_does():
    assert set(get_args(Evidence)) == {"nothing", "below_floor", "ungraded", "graded"}
    seen = 0
    for evidence, grade, rewrite, ask, choices in inputs():
        wish = [grade.relevance, grade.answerability, grade.ambiguity, grade.route] if grade else ["-"] * 4
        given = [evidence, *wish, *("yes" if flag else "no" for flag in (rewrite, ask, choices))]
        resolved = resolve_route(
            evidence,  # type: ignore[arg-type]
            grade,
            may_rewrite=rewrite,
            may_ask=ask,
            choices=choices,
        )
        assert resolved == documented(given), given
        seen += 1
    assert seen == 24 + 3 * 3 * 3 * 5 * 8


def test_every_row_of_the_table_is_reached():
    reached: set[int] = set()
    for evidence, grade, rewrite, ask, choices in inputs():
        wish = [grade.relevance, grade.answerability, grade.ambiguity, grade.route] if grade else ["-"] * 4
        given = [evidence, *wish, *("yes" if flag else "no" for flag in (rewrite, ask, choices))]
        for at, row in enumerate(table()):
            if all(cell == "any" or value in cell.split(", ") for value, cell in zip(given, row, strict=False)):
                reached.add(at)
                break
    assert reached == set(range(len(table())))


def found(*names: str) -> list[Candidate]:
    return candidates([leaf(name, filename=name) for name in names])


def asking(**fields: object) -> GradeDecision:
    return GradeDecision.model_validate(
        {"relevance": "weak", "answerability": "none", "ambiguity": "missing_slot", "route": "clarify", **fields}
    )


def test_the_prompt_and_options_of_the_model_win():
    grade = asking(prompt=" Which pump? ", options=["P1", " P2", "P1", ""], missing_slots=["model", "model", " "])
    assert question_back(grade, "clarify", found("a.pdf"), "en") == {
        "missing_slots": ["model"],
        "hitl_prompt": "Which pump?",
        "hitl_options": ["P1", "P2"],
    }


@pytest.mark.parametrize(
    "prompt",
    [None, "", "  ", "two\nlines", "x" * 301, "See https://evil.example/?q=1", "![x](//e.example)", "<img src=x>"],
)
def test_a_prompt_that_is_not_fit_gives_way_to_the_catalogue(prompt):
    grade = asking(prompt=prompt, missing_slots=["model", "year"])
    assert question_back(grade, "clarify", [], "en")["hitl_prompt"] == "Please tell me more precisely: model, year"
    assert question_back(grade, "clarify", [], "zh")["hitl_prompt"] == "请补充以下信息：model, year"
    assert question_back(asking(prompt=prompt), "clarify", [], "en")["hitl_prompt"] == "What exactly do you mean?"


def test_a_choice_falls_back_to_the_files_of_the_passages():
    chunks = found("a.pdf", "b.pdf", "a.pdf")
    grade = asking(route="scope_select", options=["only one", "[x](y)"])
    asked = question_back(grade, "scope_select", chunks, "zh")
    assert (asked["hitl_options"], asked["hitl_prompt"]) == (["a.pdf", "b.pdf"], "您指的是以下哪一项？")
    assert scope_options(asking(options=["P1", "P2"]), chunks) == ["P1", "P2"]
    assert scope_options(None, chunks) == ["a.pdf", "b.pdf"]


def test_options_are_bounded():
    assert valid_options([f"option {n}" for n in range(9)]) == [f"option {n}" for n in range(6)]
    assert valid_options(["x" * 201, "two\nlines", "fine"]) == ["fine"]
