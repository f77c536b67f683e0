"""Which server, and with which token: options, environment, and the file that ``citewire login`` writes."""

import errno
import json
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import httpx
import typer
from platformdirs import user_config_path

DEFAULT_URL = "http://127.0.0.1:8000"
TOKEN_FILE = "credentials.json"
_MAX_BYTES = 65_536

UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="CITEWIRE_URL", help=f"The server; by default that of the login, else {DEFAULT_URL}."),
]
TokenOption = Annotated[
    str | None,
    # Command lines are visible to other users of the machine, so the variable is the way.
    typer.Option("--token", envvar="CITEWIRE_TOKEN", hidden=True, help="Access token instead of the saved one."),
]
ConfigDirOption = Annotated[
    Path | None,
    typer.Option("--config-dir", envvar="CITEWIRE_CONFIG_DIR", help="Where the login is kept.", hidden=True),
]


class CredentialsError(Exception):
    """The server's address or the saved login cannot be used; the text is for the user and never holds the token."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """A server and, if there was a login, the token for it."""

    url: str
    token: str | None = field(repr=False)


def resolve(url: str | None, token: str | None, config_dir: Path | None) -> Credentials:
    """What the options say, and for what they leave open the saved login.

    A saved token goes to the server that gave it and to no other. Raises :class:`CredentialsError`.
    """
    saved = load(config_dir)
    chosen = check_url(url) if url else saved.url if saved is not None else DEFAULT_URL
    if not token and saved is not None and saved.url == chosen:
        token = saved.token
    if token and not all("!" <= char <= "~" for char in token):
        raise CredentialsError("the token holds characters that no token has; sign in again: citewire login")
    return Credentials(chosen, token or None)


def check_url(text: str) -> str:
    """``text`` as an address without a slash at its end. Raises :class:`CredentialsError`."""
    try:
        url = httpx.URL(text.strip())
        url.host.encode("idna")  # else the connection would raise it
    except (httpx.InvalidURL, UnicodeError):
        raise CredentialsError("the server's address is not a URL") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise CredentialsError("the server's address must begin with http:// or https://")
    if url.userinfo or url.query or url.fragment:
        raise CredentialsError("the server's address must be plain, without user, query and fragment")
    return str(url).rstrip("/")


def token_file(config_dir: Path | None) -> Path:
    """Where the login is kept: below ``config_dir``, else in the platform's place for configuration."""
    return (config_dir or user_config_path("citewire", appauthor=False)) / TOKEN_FILE


def load(config_dir: Path | None) -> Credentials | None:
    """The saved login, or None. Raises :class:`CredentialsError` when the file cannot be trusted or read."""
    path = token_file(config_dir)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CredentialsError(_refusal(path, error)) from error
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CredentialsError(f"{path} is not a plain file")
        return _parse(path, file.read(_MAX_BYTES))


def save(credentials: Credentials, config_dir: Path | None) -> Path:
    """Keep ``credentials`` in a file that only the user can read (0600), whole or not at all.

    Raises :class:`CredentialsError`, also when a symbolic link is in the file's place.
    """
    path = token_file(config_dir)
    content = json.dumps({"url": credentials.url, "token": credentials.token}).encode() + b"\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_symlink():
            raise OSError(errno.ELOOP, "symbolic link")
        _replace(path, content)
    except OSError as error:
        raise CredentialsError(_refusal(path, error)) from error
    return path


def _replace(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # made with mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _parse(path: Path, content: bytes) -> Credentials:
    try:
        parsed: Any = json.loads(content)
    except ValueError:
        parsed = None
    values = cast(dict[str, Any], parsed) if isinstance(parsed, dict) else {}
    url, token = values.get("url"), values.get("token")
    if not isinstance(url, str) or not isinstance(token, str):
        raise CredentialsError(f"{path} holds no login; sign in again: citewire login")
    return Credentials(check_url(url), token)


def _refusal(path: Path, error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return f"{path} is a symbolic link; remove it and sign in again: citewire login"
    return f"{path}: {error.strerror or type(error).__name__}"
