"""The worker of jobs: takes what is due, at most ``PARALLEL`` at a time, and sees each to an end.

Every process that serves runs one. A job whose worker was killed is due again when its lease is over, and goes on from
the step that was finished last. No job is tried more than ``MAX_ATTEMPTS`` times.
"""

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

from backend.errors import AppError, NotFound, StorageUnavailable
from backend.knowledge.ingest import Ingest
from backend.knowledge.job_repository import BM25, MILVUS, PARENT_STORE, JobLost, JobRepository, StoredJob
from backend.knowledge.purge import Purger
from backend.knowledge.repository import KnowledgeRepository

logger = logging.getLogger(__name__)

PARALLEL = 2
"""Jobs that this process works on at once, of all users."""
LEASE_SECONDS, RENEW_SECONDS = 15.0, 2.0
MAX_ATTEMPTS = 4
RETRY_SECONDS = 2.0
"""Before the second attempt; twice as long before each one more."""
POLL_SECONDS = 1.0
"""Between two looks for jobs of other processes; one's own are known at once."""
WAIT_SECONDS, ATTEMPT_SECONDS = 0.25, 5.0
CANCELLED = "cancelled"


class _CancelRequested(Exception):
    """Somebody asked to end the job."""


class JobWorker:
    """``counted`` is told the result of each upload: ``ok`` or a code. Owns nothing that it is given."""

    def __init__(
        self,
        jobs: JobRepository,
        repository: KnowledgeRepository,
        ingest: Ingest,
        purger: Purger,
        counted: Callable[[str], None],
    ) -> None:
        self._jobs = jobs
        self._repository = repository
        self._ingest = ingest
        self._purger = purger
        self._counted = counted
        self._slots = asyncio.Semaphore(PARALLEL)
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """There is something to do."""
        self._wake.set()

    async def run(self) -> None:
        """Takes jobs until cancelled; those it works on then are ended by :meth:`aclose`."""
        while True:
            await self._slots.acquire()
            try:
                job = await self._jobs.claim()
            except StorageUnavailable:
                job = None
            except BaseException:
                self._slots.release()
                raise
            if job is None:
                self._slots.release()
                await self._pause()
            else:
                self._start(job)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _start(self, job: StoredJob) -> "asyncio.Task[None]":
        """Works on a claimed job in a slot that is taken."""
        task = asyncio.create_task(self._carry_out(job), name=f"job-{job.id}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._slots.release()
        self.wake()
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StorageUnavailable):
            logger.warning("a job could not be ended: storage_unavailable; it is taken again when its lease is over")
        elif error is not None:
            logger.error("a job could not be ended; it is taken again when its lease is over", exc_info=error)

    async def finish(self, job_id: UUID) -> StoredJob:
        """The job when it has ended, here or in another process. Raises :class:`NotFound` when it is gone.

        Who waits and leaves does not end the job.
        """
        while True:
            job = await self._jobs.get(job_id)
            if job is None:
                raise NotFound()
            if job.ended:
                return job
            if not await self._take(job_id):
                await asyncio.sleep(WAIT_SECONDS)

    async def attempt(self, job_id: UUID) -> None:
        """Works on the job now, if nobody does; for seconds at most. What is left is done later."""
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                await self._take(job_id)
        except (StorageUnavailable, TimeoutError):
            logger.warning("job %s goes on later", job_id)

    async def _take(self, job_id: UUID) -> bool:
        """Works on that job if it is due; whether it was."""
        await self._slots.acquire()
        try:
            job = await self._jobs.claim(job_id)
        except BaseException:
            self._slots.release()
            raise
        if job is None:
            self._slots.release()
            return False
        await asyncio.wait([self._start(job)])
        return True

    async def cancel(self, job: StoredJob) -> None:
        """Ends the job soon; at once when nobody works on it."""
        await self._jobs.cancel([job.id])
        claimed = await self._jobs.claim(job.id) if job.status == "pending" else None
        if claimed is not None:
            await self._give_up(claimed, CANCELLED)

    async def aclose(self) -> None:
        """Breaks off what this process works on; it goes on at the next start, or in another process."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- one job ------------------------------------------------------------------------------------------------

    async def _carry_out(self, job: StoredJob) -> None:
        try:
            if job.cancel_requested:
                raise _CancelRequested
            if job.attempts > MAX_ATTEMPTS:
                await self._give_up(job, job.code or AppError.code)
                return
            await self._work_kept(job)
            if job.kind == "upload":
                self._counted("ok")
                await self._purger.soon()
        except _CancelRequested:
            await self._give_up(job, CANCELLED)
        except JobLost:
            await self._left(job)
        except asyncio.CancelledError:
            await asyncio.shield(self._put_back(job))
            raise
        except AppError as error:
            await self._fault(job, error)
        except Exception:
            await self._give_up(job, AppError.code)
            raise

    async def _work_kept(self, job: StoredJob) -> None:
        """Works, and keeps the lease meanwhile."""
        work = asyncio.create_task(self._ingest.run(job) if job.kind == "upload" else self._delete(job))
        try:
            while not (await asyncio.wait([work], timeout=RENEW_SECONDS))[0]:
                try:
                    cancel = await self._jobs.renew(job.id)
                except StorageUnavailable:
                    continue
                if cancel:
                    raise _CancelRequested
        finally:
            work.cancel()
            await asyncio.wait([work])
        await work

    async def _fault(self, job: StoredJob, error: AppError) -> None:
        """Tries again later what may go well then; ends the job else."""
        if not error.retryable or job.attempts >= MAX_ATTEMPTS:
            await self._give_up(job, error.code, error.fields.get("warnings"))
            return
        logger.warning("job %s: %s; it is tried again", job.id, error.code)
        pause = RETRY_SECONDS * 2 ** (job.attempts - 1)
        await self._jobs.postpone(job.id, pause, code=error.code)

    async def _give_up(self, job: StoredJob, code: str, warnings: list[dict[str, object]] | None = None) -> None:
        try:
            await self._repository.give_up(self._jobs, job, code, warnings)
        except JobLost:
            await self._left(job)
            return
        if job.kind == "upload":
            self._counted(code)
            await self._purger.soon()

    async def _left(self, job: StoredJob) -> None:
        """The job is another worker's now, or its account is gone; then so is what it made."""
        if job.version_id is not None and await self._jobs.get(job.id) is None:
            await self._repository.abandon(job.document_id, job.version_id, None)
            await self._purger.soon()

    async def _put_back(self, job: StoredJob) -> None:
        try:
            await self._jobs.postpone(job.id, 0, attempts=max(0, job.attempts - 1))
        except (JobLost, StorageUnavailable):
            logger.warning("job %s is left to the end of its lease", job.id)

    async def _delete(self, job: StoredJob) -> None:
        """Index rows and files of a document that answers no more already. Raises :class:`StorageUnavailable`."""
        await self._jobs.cancel(await self._jobs.of_document(job.document_id))
        purges = await self._purger.of(job.document_id)
        for done, purge in enumerate(purges):
            await self._jobs.progress(job.id, BM25, done * 100 // len(purges))
            await self._purger.from_index(purge)
        await self._jobs.progress(job.id, MILVUS, 100)
        await self._jobs.progress(job.id, PARENT_STORE, 0)
        for purge in purges:
            await self._purger.files(purge)
        await self._jobs.complete(job.id, processed_chunks=job.total_chunks)
