"""Several files of one request, zip files among them: each becomes a job of its own or is refused by itself."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import IO
from uuid import UUID
from zipfile import ZipFile, ZipInfo

from backend.errors import AppError, Forbidden, NameTaken, TooLarge, TooManyFiles
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.job_desk import JobDesk, clean_filename
from backend.knowledge.zip_entries import Budget, entries_of, name_of, unpack
from backend.schemas.auth import Principal
from backend.schemas.documents import Visibility

ZIP = ".zip"


@dataclass(frozen=True, slots=True)
class Incoming:
    """A file of the request as the client named it."""

    filename: str
    content: IO[bytes]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one file: ``job_id``, or the ``code`` that refused it. ``archive`` is the zip file that it came in."""

    filename: str
    archive: str | None = None
    job_id: UUID | None = None
    code: str | None = None


@dataclass(slots=True)
class _Request:
    """One call. ``names`` are those of the files that were taken, ``files`` is how many may still come."""

    principal: Principal
    visibility: Visibility | None
    budget: Budget
    files: int
    names: set[str]


class BatchUploads:
    """Owns nothing that it is given."""

    def __init__(self, desk: JobDesk, config: KnowledgeConfig) -> None:
        self._desk = desk
        self._config = config

    async def submit(
        self, principal: Principal, files: Sequence[Incoming], visibility: Visibility | None = None
    ) -> list[Outcome]:
        """What became of every file, in their order; the entries of a zip file stand in its place.

        A zip file that is broken, empty or too full is one outcome of its own. A second file of one name is
        ``name_taken``, what is beyond ``max_batch_files`` is ``too_many_files``. Raises :class:`Forbidden` as
        :meth:`JobDesk.submit` does; every other refusal is one file's.
        """
        if visibility == "shared" and principal.role != "admin":
            raise Forbidden()
        budget = Budget(self._config.max_batch_inflated_bytes)
        request = _Request(principal, visibility, budget, self._config.max_batch_files, set())
        return [outcome for file in files async for outcome in self._outcomes(request, file)]

    async def _outcomes(self, request: _Request, file: Incoming) -> AsyncGenerator[Outcome]:
        if not file.filename.lower().endswith(ZIP):
            yield await self._submit(request, file.filename, file.content)
            return
        try:
            async with AsyncExitStack() as stack:
                opening = entries_of(file.content, request.files)
                archive, entries = await asyncio.to_thread(opening.__enter__)
                stack.push(opening.__exit__)
                for entry in entries:
                    yield await self._unpacked(request, file.filename, archive, entry)
        except AppError as error:
            yield Outcome(_shown(file.filename), code=error.code)

    async def _unpacked(self, request: _Request, archive_name: str, archive: ZipFile, entry: ZipInfo) -> Outcome:
        name = _shown(archive_name)
        if request.budget.left < 0:  # nothing is unpacked beyond it only to be refused
            return Outcome(_shown(name_of(entry)), name, code=TooLarge.code)
        try:
            content = await asyncio.to_thread(unpack, archive, entry, self._config, request.budget)
        except AppError as error:
            request.files -= 1
            return Outcome(_shown(name_of(entry)), name, code=error.code)
        with content:
            return await self._submit(request, name_of(entry), content, name)

    async def _submit(
        self, request: _Request, filename: str, content: IO[bytes], archive: str | None = None
    ) -> Outcome:
        request.files -= 1
        shown = _shown(filename)
        try:
            if request.files < 0:
                raise TooManyFiles()
            if shown in request.names:
                raise NameTaken()
            job = await self._desk.submit(request.principal, filename, content, request.visibility)
        except AppError as error:
            return Outcome(shown, archive, code=error.code)
        request.names.add(job.filename)
        return Outcome(job.filename, archive, job.id)


def _shown(filename: str) -> str:
    """The name that the library would give; empty when there is none in it."""
    try:
        return clean_filename(filename)
    except AppError:
        return ""
