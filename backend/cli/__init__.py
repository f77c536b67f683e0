"""The command ``citewire``."""

import typer

from backend.cli.client import ask, ingest, login
from backend.cli.serve import serve

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
app.command()(serve)
app.command()(login)
app.command()(ingest)
app.command()(ask)


def main() -> None:
    """Entry point of the console script."""
    app()
