"""``citewire login``."""

from typing import Annotated

import typer

from backend.cli.client import answer_of, connect, explained
from backend.cli.credentials import DEFAULT_URL, ConfigDirOption, Credentials, UrlOption, check_url, load, save
from backend.cli.output import console, errors, fail, one_line
from backend.cli.passwords import read_password, require_terminal

_NO_TERMINAL = "use --username and --password-stdin"


def login(
    register: Annotated[bool, typer.Option("--register", help="Make the account first.")] = False,
    print_token: Annotated[bool, typer.Option("--print-token", help="Print the token, and nothing else.")] = False,
    username: Annotated[str | None, typer.Option(help="Name of the account; asked for without it.")] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input, its first line.")
    ] = False,
    url: UrlOption = None,
    config_dir: ConfigDirOption = None,
) -> None:
    """Sign in, and keep the server and the token for the other commands. The first account of an install is admin."""
    with explained():
        if url is None:
            saved = load(config_dir)
            url = saved.url if saved is not None else DEFAULT_URL
        server = check_url(url)
        name, password = _ask(username, register=register, from_stdin=password_stdin)
        with connect(Credentials(server, None)) as client:
            body = {"username": name, "password": password}
            answer = answer_of(client.post("/auth/register" if register else "/auth/login", json=body))
        path = save(Credentials(server, answer["access_token"]), config_dir)
    (errors if print_token else console).print(
        one_line(f"Signed in to {server} as {answer['username']} ({answer['role']}); kept in {path}")
    )
    if print_token:
        typer.echo(answer["access_token"])


def _ask(username: str | None, *, register: bool, from_stdin: bool) -> tuple[str, str]:
    """Name and password, from options, standard input, or questions at the terminal (shown on standard error)."""
    if from_stdin and username is None:
        fail("--password-stdin needs --username")
    if not from_stdin:
        require_terminal(_NO_TERMINAL)
    name = username if username is not None else typer.prompt("Username", err=True)
    return name, read_password(from_stdin=from_stdin, confirm=register)
