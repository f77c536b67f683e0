"""The HTTP side of the commands: a client with the token, and every failure as one line for the user."""

import ipaddress
import locale
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

import httpx

from backend.cli.credentials import Credentials, CredentialsError
from backend.cli.output import fail

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0


class ServerUnreachable(Exception):
    """No connection, or one that was lost before the answer was there."""


class ServerRefused(Exception):
    """The server answered with an error: its text is ``detail (code)``."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{detail} ({code})")
        self.status = status
        self.code = code
        self.detail = detail


@contextmanager
def explained() -> Generator[None]:
    """Turns what can go wrong inside into one line on standard error and exit code 1."""
    try:
        yield
    except (ServerUnreachable, ServerRefused, CredentialsError) as error:
        fail(str(error))


@contextmanager
def connect(credentials: Credentials, *, read_seconds: float = ANSWER_SECONDS) -> Generator[httpx.Client]:
    """A client of the server. ``read_seconds`` bounds the wait for each piece of an answer.

    Raises :class:`ServerUnreachable` for what the transport raises inside.
    """
    headers = {"Accept-Language": "zh" if (locale.getlocale()[0] or "").startswith("zh") else "en"}
    if credentials.token:
        headers["Authorization"] = f"Bearer {credentials.token}"
    timeout = httpx.Timeout(read_seconds, connect=CONNECT_SECONDS)
    # A proxy of the environment cannot reach this machine's own loopback.
    trust_env = not _is_loopback(httpx.URL(credentials.url).host)
    with httpx.Client(base_url=credentials.url, headers=headers, timeout=timeout, trust_env=trust_env) as client:
        try:
            yield client
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            text = f"no server answers at {credentials.url}; start it with: make run"
            raise ServerUnreachable(text) from error
        except httpx.TimeoutException as error:
            raise ServerUnreachable(f"the server at {credentials.url} did not answer in time") from error
        except httpx.HTTPError as error:
            raise ServerUnreachable(f"the connection to {credentials.url} was lost") from error


def answer_of(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of a success. Raises :class:`ServerRefused` for every other answer."""
    check(response)
    body = _json_object(response)
    if body is None:
        raise ServerRefused(response.status_code, "no_json", "this is not an answer of Citewire; check the address")
    return body


def check(response: httpx.Response) -> None:
    """Raises :class:`ServerRefused` unless the answer is a success; its body must have been read."""
    if response.is_success:
        return
    body = _json_object(response) or {}
    detail, code = body.get("detail"), body.get("code")
    if not isinstance(detail, str) or not isinstance(code, str):
        text = f"the server answered with status {response.status_code}; check the address"
        raise ServerRefused(response.status_code, "http_error", text)
    if response.status_code == 401 and response.request.headers.get("Authorization"):
        detail = "the login is no longer valid; sign in again: citewire login"
    elif response.status_code == 401 and not response.request.url.path.endswith("/auth/login"):
        detail = "not signed in; sign in first: citewire login"
    raise ServerRefused(response.status_code, code, detail.removesuffix(".") + _fields(body))


def _fields(body: dict[str, Any]) -> str:
    """What a 422 says about the fields, as ``: field: reason``."""
    found = body.get("errors")
    if not isinstance(found, list) or not found:
        return ""
    items = [cast(dict[str, Any], item) for item in cast(list[Any], found) if isinstance(item, dict)]
    return ": " + "; ".join(f"{_place(item.get('loc'))}: {item.get('msg')}" for item in items)


def _place(loc: Any) -> str:
    return ".".join(str(part) for part in cast(list[Any], loc)) if isinstance(loc, list) else "body"


def _json_object(response: httpx.Response) -> dict[str, Any] | None:
    try:
        body: Any = response.json()
    except ValueError:
        return None
    return cast(dict[str, Any], body) if isinstance(body, dict) else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
