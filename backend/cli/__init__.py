"""The command ``citewire``."""

import errno
import sys
from io import TextIOWrapper

import typer

from backend.cli.ask import ask
from backend.cli.chat import chat
from backend.cli.collection import collection
from backend.cli.doctor import doctor
from backend.cli.eval import evaluation
from backend.cli.index import index
from backend.cli.ingest import ingest
from backend.cli.login import login
from backend.cli.output import complain
from backend.cli.reindex import reindex
from backend.cli.serve import serve
from backend.cli.trace import trace
from backend.cli.user import user

HELP = (
    "Ask your documents. Of the server: serve, doctor, reindex, index, user, eval; all other commands talk to a server."
)

_UNWRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EPIPE}
"""A full disk, a spent quota, a terminal that is gone."""

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=HELP)
app.command()(serve)
app.command()(login)
app.command()(ingest)
app.command()(ask)
app.command()(chat)
app.command()(trace)
app.command()(doctor)
app.command()(reindex)
app.add_typer(collection, name="collection")
app.add_typer(index, name="index")
app.add_typer(evaluation, name="eval")
app.add_typer(user, name="user")


def main() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows what it can
    sys.argv = [argument.encode("utf-8", "replace").decode() for argument in sys.argv]  # bytes that are no text
    try:
        app()
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        complain(f"cannot write the output ({error.strerror})")
        sys.exit(1)
