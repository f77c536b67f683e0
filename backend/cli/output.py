"""What the commands print: results on standard output, one line of error on standard error."""

from typing import NoReturn

import typer
from rich.console import Console

console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def fail(text: str) -> NoReturn:
    """One line on standard error and exit code 1."""
    errors.print(f"citewire: {' '.join(text.split())}", style="red", markup=False)
    raise typer.Exit(1)
