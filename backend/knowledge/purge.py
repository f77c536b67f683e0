"""What deletions leave outside Postgres: index rows and files, removed by the outbox until nothing is left."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from backend.errors import StorageUnavailable
from backend.infra.files import remove_document
from backend.knowledge.index.base import ChunkIndex
from backend.knowledge.repository import KnowledgeRepository, Purge

logger = logging.getLogger(__name__)

PURGE_SECONDS = 5.0
ORPHAN_SECONDS = 45.0
"""A version in the making without a job is given up when it is older."""


class Purger:
    """Owns nothing that it is given."""

    def __init__(self, repository: KnowledgeRepository, index: ChunkIndex, data_dir: Path) -> None:
        self._repository = repository
        self._index = index
        self._data_dir = data_dir

    async def recover(self, older_than_seconds: float) -> None:
        """Takes back the versions in the making of that age that no job makes any more."""
        for document_id, version_id in await self._repository.orphans(timedelta(seconds=older_than_seconds)):
            await self._repository.abandon(document_id, version_id, None)
            logger.info("version %s was left unfinished and is taken back", version_id)

    async def all(self) -> None:
        """Purges until the outbox is empty or something cannot be purged."""
        last: UUID | None = None
        while purges := await self._repository.purges(100, last):
            for purge in purges:
                await self._one(purge)
                last = purge.id

    async def soon(self) -> None:
        """Purges at once what can be; the rest is the sweeper's."""
        try:
            async with asyncio.timeout(PURGE_SECONDS):
                for purge in await self._repository.purges(20):
                    await self._one(purge)
        except (StorageUnavailable, TimeoutError):
            logger.warning("purging is left to the sweeper")

    async def _one(self, purge: Purge) -> None:
        try:
            await self.from_index(purge)
            await self.files(purge)
        except StorageUnavailable as error:
            logger.warning("version %s could not be purged yet", purge.version_id, exc_info=error)

    async def of(self, document_id: UUID) -> list[Purge]:
        """What is left of a document."""
        return await self._repository.purges_of(document_id)

    async def from_index(self, purge: Purge) -> None:
        """Raises :class:`StorageUnavailable`."""
        await self._index.delete_version(purge.version_id)

    async def files(self, purge: Purge) -> None:
        """Removes the original; the last step of a purge. Raises :class:`StorageUnavailable`."""
        try:
            await asyncio.to_thread(remove_document, self._data_dir, purge.document_id, purge.version_id)
        except OSError as error:
            raise StorageUnavailable(retry_after=1) from error
        await self._repository.purged(purge.id)
