"""``citewire user``: its options only. What changes accounts is heavy, so no other command loads it."""

from importlib import import_module
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from backend.cli.output import confirm, fail
from backend.cli.passwords import read_password
from backend.schemas.auth import PASSWORD_MAX, PASSWORD_MIN, RegisterRequest

_ANY_NAME = "name"
"""Where the password alone is checked."""

user = typer.Typer(
    no_args_is_help=True,
    help="Accounts, on the machine of the server: directly in its database, whether it runs or not.",
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the account.")]
PasswordOption = Annotated[
    bool, typer.Option("--password-stdin", help="Read the password from standard input, its first line.")
]


@user.command()
def add(
    name: NameArgument,
    admin: Annotated[bool, typer.Option("--admin", help="An administrator; the first account is one anyway.")] = False,
    password_stdin: PasswordOption = False,
) -> None:
    """Make an account; asks for its password."""
    request = _checked(name, read_password(from_stdin=password_stdin))
    _operations().add(request, admin=admin)


@user.command()
def disable(name: NameArgument) -> None:
    """Keep an account from signing in, and end its tokens; what it owns stays."""
    _operations().set_disabled(name, disabled=True)


@user.command()
def enable(name: NameArgument) -> None:
    """Let a disabled account sign in again."""
    _operations().set_disabled(name, disabled=False)


@user.command()
def passwd(name: NameArgument, password_stdin: PasswordOption = False) -> None:
    """Set a new password, without the old one, and end the account's tokens."""
    request = _checked(_ANY_NAME, read_password(from_stdin=password_stdin))
    _operations().set_password(name, request)


@user.command()
def delete(
    name: NameArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete an account with its conversations and private documents; its shared documents stay."""
    if not yes:
        confirm(f"Delete {name} with all conversations and private documents? This cannot be undone.")
    _operations().delete(name)


def _checked(name: str, password: str) -> RegisterRequest:
    """Name and password by the rules of a registration; else one line and exit code 1, without the password."""
    try:
        return RegisterRequest.model_validate({"username": name, "password": password})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        if first["loc"] == ("password",):
            fail(f"the password must have {PASSWORD_MIN} to {PASSWORD_MAX} characters")
        fail(f"the name {first['msg'].removeprefix('Value error, ')}")


def _operations() -> Any:
    return import_module("backend.cli.accounts")
