"""``citewire eval``: its options only. What it does is heavy, so no other command loads it."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

# `eval` is the command's name; the function of that name is not used here.
evaluation = typer.Typer(
    no_args_is_help=True,
    help="Measure quality on passages and questions of your own, in a library that is thrown away.",
)

PassagesOption = Annotated[Path, typer.Option(help='JSON lines: {"id", "text", "lang"?}.', metavar="FILE")]
QuestionsOption = Annotated[
    Path,
    typer.Option(
        help='JSON lines: {"id", "question", "passage_id" or "relevant": {id: grade}, "answer"?, "lang"?}.',
        metavar="FILE",
    ),
]
LangOption = Annotated[str | None, typer.Option(help="Only the passages and questions with this lang.")]
SampleOption = Annotated[int | None, typer.Option(min=1, help="So many of the questions, evenly spread.")]
JsonOption = Annotated[bool, typer.Option("--json", help="The figures as JSON.")]


@evaluation.command()
def retrieval(
    passages: PassagesOption,
    questions: QuestionsOption,
    lang: LangOption = None,
    sample: SampleOption = None,
    as_json: JsonOption = False,
) -> None:
    """Whether the right passages are found: nDCG@10, recall@5, MRR and times, of each arm of the index and of both."""
    _evaluating().run_retrieval(passages, questions, lang=lang, sample=sample, as_json=as_json)


@evaluation.command()
def answers(
    passages: PassagesOption,
    questions: QuestionsOption,
    lang: LangOption = None,
    sample: SampleOption = None,
    as_json: JsonOption = False,
) -> None:
    """Whether answers hold what is expected, cite the right passage, and are refused when that passage is removed."""
    _evaluating().run_answers(passages, questions, lang=lang, sample=sample, as_json=as_json)


def _evaluating() -> Any:
    return import_module("backend.cli.evaluating")
