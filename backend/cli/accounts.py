"""What ``citewire user`` does: the accounts of this machine's install, without its server."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from backend.app import account_removal, accounts
from backend.catalogue import say
from backend.chat.removal import Removed
from backend.cli.output import complain, console, fail, one_line
from backend.errors import AppError, NameTaken, NotFound
from backend.infra.embedded.errors import EmbeddedServiceError
from backend.log import configure_logging
from backend.schemas.auth import Principal, RegisterRequest
from backend.settings import Settings, load_settings

T = TypeVar("T")


def add(request: RegisterRequest, *, admin: bool) -> None:
    """Make an account."""

    async def make(settings: Settings) -> Principal:
        async with accounts(settings) as auth:
            return await auth.add(request.username, request.password, "admin" if admin else "user")

    made = _run(request.username, make)
    console.print(one_line(f"{made.username}: account made ({made.role})"))


def set_disabled(name: str, *, disabled: bool) -> None:
    """Disable or enable an account."""

    async def change(settings: Settings) -> tuple[Principal, bool]:
        async with accounts(settings) as auth:
            return await auth.set_disabled(name, disabled), await auth.has_admin()

    changed, has_admin = _run(name, change)
    console.print(one_line(f"{changed.username}: {'disabled' if disabled else 'enabled'}, its tokens have ended"))
    _warn_without_admin(has_admin)


def set_password(name: str, request: RegisterRequest) -> None:
    """Set the password of a request."""

    async def change(settings: Settings) -> Principal:
        async with accounts(settings) as auth:
            return await auth.reset_password(name, request.password)

    changed = _run(name, change)
    console.print(one_line(f"{changed.username}: password set, its tokens have ended"))


def delete(name: str) -> None:
    """Delete an account with what belongs to it alone."""

    async def remove(settings: Settings) -> tuple[Removed, bool]:
        async with account_removal(settings) as removal:
            return await removal.remove(name), await removal.auth.has_admin()

    gone, has_admin = _run(name, remove)
    counts = f"{gone.sessions} conversations, {gone.documents} private documents"
    console.print(one_line(f"{gone.username}: deleted, with {counts}"))
    _warn_without_admin(has_admin)


def _warn_without_admin(has_admin: bool) -> None:
    if not has_admin:
        complain("no administrator is left; make one: citewire user add NAME --admin")


def _run(name: str, operation: Callable[[Settings], Coroutine[Any, Any, T]]) -> T:
    """The result of ``operation``. What keeps it from working is one line and exit code 1."""
    try:
        settings = load_settings()
        configure_logging("critical", secrets=settings.secret_values())  # what matters is said in one line
        return asyncio.run(operation(settings))
    except NotFound:
        fail(f"there is no account named {name}")
    except NameTaken:
        fail(f"there is an account named {name} already")
    except AppError as error:
        fail(f"{say(error.code, 'en').removesuffix('.')} ({error.code})")
    except (EmbeddedServiceError, ValueError) as error:  # a wrong option is a ValueError that names it
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or 'DATA_DIR'}: {error.strerror or type(error).__name__}")
