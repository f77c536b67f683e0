"""``citewire serve``: its options only. The server itself is heavy, so no other command loads it."""

from importlib import import_module
from typing import Annotated

import typer


def serve(
    sample: Annotated[bool, typer.Option(help="Load the sample document into a new library.")] = False,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="HOST")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="PORT")] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=64, help="Processes.", show_default="WORKERS")] = None,
) -> None:
    """Start the server: embedded PostgreSQL and Valkey unless DATABASE_URL and REDIS_URL are set."""
    server = import_module("backend.cli.server")
    server.run_server(sample=sample, host=host, port=port, workers=workers)
