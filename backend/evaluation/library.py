"""A library of its own for a measurement: embedded servers in a directory that goes with it."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Self, TypeVar
from uuid import UUID

from pydantic import SecretStr

from backend.api.deps import Services
from backend.app import services
from backend.errors import AppError
from backend.evaluation.dataset import Passage
from backend.schemas.auth import Principal
from backend.settings import Settings

UPLOADS = 4
"""Passages on their way at once, so that one is read while another is embedded."""

Progress = Callable[[], None]
"""Called when one more is done."""

Item = TypeVar("Item")
Result = TypeVar("Result")


async def in_parallel(
    items: Sequence[Item], limit: int, run: Callable[[Item], Awaitable[Result]], advance: Progress
) -> list[Result]:
    """``run`` of every item, ``limit`` at once, in the order of ``items``. The first failure ends the others and is
    raised."""
    slots = asyncio.Semaphore(limit)

    async def one(item: Item) -> Result:
        async with slots:
            result = await run(item)
        advance()
        return result

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return [task.result() for task in tasks]


@contextmanager
def throwaway(settings: Settings) -> Generator[Settings]:
    """``settings`` with all that is stored in a new directory, which is removed at the end, and nothing that limits
    or watches users. Models, reranker and retrieval stay as they are set."""
    with tempfile.TemporaryDirectory(prefix="citewire-eval-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o711)  # started by root, PostgreSQL runs under an account that has to get to its files
        changed = {
            "data_dir": Path(name) / "data",
            "database_url": None,
            "redis_url": None,
            "index_url": None,
            "jwt_secret_key": None,
            "otel_exporter_otlp_endpoint": None,
            "chat_rate_per_minute": 0,
            "max_bytes_per_user": 2**62,
            "max_runs_per_user": 1_000,
            "max_runs_per_worker": 1_000,
        }
        yield settings.model_copy(update=changed)


class Library:
    """Passages as documents of one account, each a file of its own."""

    def __init__(self, built: Services, principal: Principal) -> None:
        self.knowledge = built.knowledge
        self.chat = built.chat
        self.principal = principal
        self._documents: dict[UUID, str] = {}
        self._files: dict[str, str] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings) -> AsyncGenerator[Self]:
        """A new, empty library in the directory of ``settings``. Raises as :func:`backend.app.services` does."""
        async with services(settings) as built:
            principal = await built.auth.add("evaluation", SecretStr("no one signs in here"), "admin")
            yield cls(built, principal)

    async def add(self, passages: Sequence[Passage], advance: Progress) -> None:
        """Stores the passages and folds the index. Raises ``ValueError`` naming a passage that cannot be stored."""
        named = [(f"{number:06}.txt", passage) for number, passage in enumerate(passages, start=1)]
        await in_parallel(named, UPLOADS, lambda item: self._upload(*item), advance)
        await self.knowledge.optimize()

    async def _upload(self, filename: str, passage: Passage) -> None:
        try:
            stored = await self.knowledge.upload(self.principal, filename, passage.text.encode())
        except AppError as error:
            raise ValueError(f"the passage {passage.id!r} cannot be stored ({error.code})") from error
        self._documents[stored.document_id] = passage.id
        self._files[passage.id] = filename

    async def remove(self, passage_ids: Collection[str]) -> None:
        """Deletes those passages as a user would."""
        for passage_id in passage_ids:
            await self.knowledge.delete(self.principal, self._files.pop(passage_id))

    def passage_of(self, document_id: UUID) -> str:
        """The id of the passage that is this document."""
        return self._documents[document_id]

    def ranked(self, document_ids: Sequence[UUID]) -> list[str]:
        """The passages of ``document_ids``, each where it stands first."""
        return list(dict.fromkeys(map(self.passage_of, document_ids)))
