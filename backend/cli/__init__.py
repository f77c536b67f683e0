"""The command ``citewire``."""

import sys
from io import TextIOWrapper

import typer

from backend.cli.ask import ask
from backend.cli.ingest import ingest
from backend.cli.login import login
from backend.cli.serve import serve

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.command()(serve)
app.command()(login)
app.command()(ingest)
app.command()(ask)


def main() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows what it can
    app()
