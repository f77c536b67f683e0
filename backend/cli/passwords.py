"""How a command comes by a password: a hidden question at the terminal, or standard input. Never an argument."""

import sys

import typer

from backend.cli.output import fail


def read_password(*, from_stdin: bool, confirm: bool = True, hint: str = "use --password-stdin") -> str:
    """The password; asked for twice with ``confirm``. Without a terminal one line with ``hint`` and exit code 1."""
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    require_terminal(hint)
    return typer.prompt("Password", hide_input=True, confirmation_prompt=confirm, err=True)


def require_terminal(hint: str) -> None:
    """One line with ``hint`` and exit code 1 unless standard input is a terminal."""
    if not sys.stdin.isatty():
        fail(f"no terminal to ask for the password; {hint}")
