"""What callers ask of jobs: to upload and delete, to look how far one is, to end one."""

import asyncio
import hashlib
import logging
import os
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO
from uuid import UUID, uuid4

from sqlalchemy.ext.asyncio import AsyncEngine

from backend.errors import (
    AppError,
    Cancelled,
    DocumentError,
    Forbidden,
    NotFound,
    ProviderError,
    StorageUnavailable,
    TooLarge,
    TypeMismatch,
    ValidationFailed,
)
from backend.infra.embedding import Embedder
from backend.infra.files import document_path, write_atomic
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex
from backend.knowledge.ingest import Ingest
from backend.knowledge.job_news import JobNews
from backend.knowledge.job_repository import CLEANUP, JobRepository, StoredJob
from backend.knowledge.jobs import LEASE_SECONDS, JobWorker
from backend.knowledge.library import Library
from backend.knowledge.parse import file_type_of
from backend.knowledge.purge import Purger
from backend.knowledge.repository import KnowledgeRepository, Upload
from backend.metrics import count_upload
from backend.schemas.auth import Principal
from backend.schemas.documents import JobKind, Visibility
from backend.text import clean_text

logger = logging.getLogger(__name__)

MAX_FILENAME_BYTES = 255
KEEP_JOBS = timedelta(days=7)
"""How long an ended job can be asked about."""
LIST_LIMIT = 200
Content = bytes | Path | IO[bytes]
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class UploadResult:
    """``filename`` is the name that was stored; ``chunks_processed`` counts leaves."""

    filename: str
    chunks_processed: int
    document_id: UUID


@dataclass(frozen=True, slots=True)
class DeleteResult:
    """``chunks_deleted`` counts leaves."""

    filename: str
    chunks_deleted: int


def clean_filename(filename: str) -> str:
    """The last part of ``filename`` (of either kind of slash) without control characters, 255 bytes at most (H07).

    Raises :class:`ValidationFailed` when nothing is left.
    """
    name = _CONTROL.sub("", clean_text(filename)).replace("\\", "/").rpartition("/")[2].strip()
    stem, dot, extension = name.rpartition(".")
    if name in {"", ".", ".."}:
        raise ValidationFailed(errors=[{"loc": ["file"], "msg": "a file name is required"}])
    if len(name.encode()) <= MAX_FILENAME_BYTES:
        return name
    tail = (dot + extension).encode()[:32].decode(errors="ignore") if stem else ""
    head = (stem or name).encode()[: MAX_FILENAME_BYTES - len(tail.encode())]
    return head.decode(errors="ignore") + tail


class JobDesk:
    """Owns nothing that it is given. :meth:`aclose` breaks off what this process works on."""

    def __init__(
        self,
        engine: AsyncEngine,
        repository: KnowledgeRepository,
        library: Library,
        index: ChunkIndex,
        embedder: Embedder,
        config: KnowledgeConfig,
        data_dir: Path,
        purger: Purger,
    ) -> None:
        self._repository = repository
        self._config = config
        self._data_dir = data_dir
        self._purger = purger
        self._jobs = JobRepository(engine, str(uuid4()), timedelta(seconds=LEASE_SECONDS))
        self.news = JobNews(self._jobs)
        ingest = Ingest(self._jobs, repository, library, index, embedder, config, data_dir)
        self._worker = JobWorker(self._jobs, repository, ingest, purger, count_upload)

    async def run(self) -> None:
        """Works on what is due, of all processes, until cancelled."""
        await self._worker.run()

    async def aclose(self) -> None:
        """Gives back what this process works on."""
        await self._worker.aclose()

    async def forget(self) -> None:
        """Drops jobs that ended long ago."""
        await self._jobs.forget(KEEP_JOBS)

    # --- uploads ------------------------------------------------------------------------------------------------

    async def submit(
        self, principal: Principal, filename: str, content: Content, visibility: Visibility | None = None
    ) -> StoredJob:
        """Keeps the file and leaves the rest to a job, which is returned.

        ``visibility`` is ``shared`` for admins and ``private`` for users by default; a user asking for ``shared``
        is :class:`Forbidden`. The bytes of the current version again change nothing, those of the one in the making
        give its job. Raises :class:`ValidationFailed` (name), :class:`TypeMismatch`, :class:`TooLarge`,
        :class:`DocumentError` (nothing in it) and :class:`StorageUnavailable`.
        """
        try:
            visibility = visibility or ("shared" if principal.role == "admin" else "private")
            if visibility == "shared" and principal.role != "admin":
                raise Forbidden()
            return await self._submit(principal.id, visibility, clean_filename(filename), content)
        except AppError as error:
            count_upload(error.code)
            raise

    async def upload(
        self, principal: Principal, filename: str, content: Content, visibility: Visibility | None = None
    ) -> UploadResult:
        """As :meth:`submit`, and waits until the document answers; who stops waiting does not end the job.

        Raises what the job ended with too: :class:`DocumentError`, :class:`ProviderError`, :class:`NotFound`
        (deleted meanwhile), :class:`Cancelled`.
        """
        return await self._result(await self.submit(principal, filename, content, visibility))

    async def add_sample(self, path: Path) -> UploadResult:
        """Stores a document that came with the install: shared, owned by nobody. Raises as :meth:`upload` does."""
        return await self._result(await self._submit(None, "shared", path.name, path))

    async def _submit(self, owner_id: UUID | None, visibility: Visibility, name: str, content: Content) -> StoredJob:
        file_type = file_type_of(name)
        size, sha256 = await asyncio.to_thread(_measure, content, self._config.max_upload_bytes)
        upload = Upload(owner_id, visibility, name, file_type, sha256, size)
        accepted = await self._repository.begin(upload, self._config.max_bytes_per_user, self._jobs.worker_id)
        if accepted.version_id is not None:
            path = document_path(self._data_dir, accepted.document_id, accepted.version_id)
            await self._keep(accepted.job_id, path, content)
        job = await self._jobs.get(accepted.job_id)
        if job is None:
            raise NotFound()
        return job

    async def _keep(self, job_id: UUID, path: Path, content: Content) -> None:
        """Writes the file and makes the job due. Killed or cancelled before that, the job ends by itself."""
        try:
            await asyncio.to_thread(write_atomic, path, content)
        except OSError as error:
            logger.exception("an upload could not be written")
            job = await self._jobs.get(job_id)
            if job is not None:
                await self._repository.give_up(self._jobs, job, StorageUnavailable.code, None)
            raise StorageUnavailable(retry_after=5) from error
        await self._jobs.postpone(job_id, 0, step=CLEANUP)
        self._worker.wake()

    async def _result(self, job: StoredJob) -> UploadResult:
        ended = await self._worker.finish(job.id)
        if ended.status == "failed":
            raise _error(ended)
        return UploadResult(ended.filename, ended.total_chunks, ended.document_id)

    # --- deletions ----------------------------------------------------------------------------------------------

    async def submit_delete(self, principal: Principal, filename: str, document_id: UUID | None = None) -> StoredJob:
        """Removes a document, which is never recalled again; its index rows and files go with the returned job.

        The principal's own private document of that name first, then the shared one; ``document_id`` decides
        otherwise. Raises :class:`NotFound` (absent, or someone's private one) and :class:`Forbidden` (shared,
        and the principal is no admin).
        """
        deleted = await self._repository.delete_document(principal, clean_text(filename), document_id)
        self._worker.wake()
        return await self._jobs.one(principal, "delete", deleted.job_id)

    async def delete(self, principal: Principal, filename: str, document_id: UUID | None = None) -> DeleteResult:
        """As :meth:`submit_delete`; what can be purged at once is, the rest goes with the job."""
        job = await self.submit_delete(principal, filename, document_id)
        await asyncio.shield(self._worker.attempt(job.id))
        return DeleteResult(job.filename, job.total_chunks)

    # --- jobs ---------------------------------------------------------------------------------------------------

    async def get(self, principal: Principal, kind: JobKind, job_id: UUID) -> StoredJob:
        """One's own job; an admin's are those of shared documents too. Raises :class:`NotFound`."""
        return await self._jobs.one(principal, kind, job_id)

    async def newest(self, principal: Principal, kind: JobKind) -> list[StoredJob]:
        """The last ``LIST_LIMIT`` jobs of that kind, newest first."""
        return await self._jobs.newest(principal, kind, LIST_LIMIT)

    async def changed(self, principal: Principal, since: datetime | None) -> list[StoredJob]:
        """Jobs that changed at ``since`` or later, oldest change first; without it those that have not ended."""
        return await self._jobs.changed(principal, since, LIST_LIMIT)

    async def now(self) -> datetime:
        """The time of the database, which jobs are stamped with."""
        return await self._jobs.now()

    async def cancel(self, principal: Principal, job_id: UUID) -> StoredJob:
        """Ends an upload soon, as failed with the code ``cancelled``; one that has ended stays as it is.

        Raises :class:`NotFound`.
        """
        job = await self._jobs.one(principal, "upload", job_id)
        await self._worker.cancel(job)
        return await self._jobs.one(principal, "upload", job_id)


def _measure(content: Content, max_bytes: int) -> tuple[int, str]:
    """Size and SHA-256 of the content; blocks. Raises :class:`TooLarge` or, for nothing at all, ``empty_document``."""
    if isinstance(content, bytes):
        size = len(content)
    else:
        size = content.stat().st_size if isinstance(content, Path) else content.seek(0, os.SEEK_END)
    if size > max_bytes:
        raise TooLarge()
    if size == 0:
        raise DocumentError("empty_document")
    return size, _sha256(content)


def _sha256(content: Content) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    if isinstance(content, Path):
        with content.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    content.seek(0)
    digest = hashlib.sha256()
    while piece := content.read(1024 * 1024):
        digest.update(piece)
    return digest.hexdigest()


def _error(job: StoredJob) -> AppError:
    """The error that a failed job stands for."""
    code = job.code or AppError.code
    if code in DocumentError.CODES:
        return DocumentError(code)
    if code in ProviderError.CODES:
        return ProviderError(code, retryable=code not in ("provider_rejected", "provider_protocol"))
    plain: tuple[type[AppError], ...] = (TooLarge, TypeMismatch, NotFound, Cancelled, StorageUnavailable)
    return next((kind for kind in plain if kind.code == code), AppError)()
