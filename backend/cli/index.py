"""``citewire index``: its options only. What it does is heavy, so no other command loads it."""

from importlib import import_module
from typing import Annotated

import typer

index = typer.Typer(no_args_is_help=True, help="The search index, on the machine of the server.")


@index.callback()
def _group() -> None:
    """Keeps `verify` a command of its own while it is the only one."""


@index.command()
def verify(
    repair: Annotated[bool, typer.Option("--repair", help="Add what is missing and remove what is left over.")] = False,
) -> None:
    """Compare the search index with the database; code 1 when they differ. Servers may run meanwhile."""
    reindexing = import_module("backend.cli.reindexing")
    reindexing.run_verify(repair=repair)
