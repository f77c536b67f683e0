"""Uploads and deletions that go on by themselves: start one, look how far it is, end it."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import orjson
from fastapi import APIRouter, Form, Query, UploadFile
from pydantic import ConfigDict
from sse_starlette import EventSourceResponse, ServerSentEvent

from backend.api.deps import CurrentLanguage, CurrentServices, CurrentUser, PathId, Services
from backend.api.errors import COMMON_ERRORS, error_responses
from backend.api.job_view import job_info
from backend.api.routes.documents import UploadForm
from backend.catalogue import Language, say
from backend.errors import StorageUnavailable
from backend.knowledge.batch import Incoming, Outcome
from backend.protocols.native import frame
from backend.schemas.auth import Principal
from backend.schemas.base import StrictSchema
from backend.schemas.documents import BatchFile, BatchResponse, JobAccepted, JobInfo, JobList, Visibility


class BatchForm(StrictSchema):
    """The multipart form of a batch: the field `file`, as often as there are files."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    file: list[UploadFile]
    visibility: Visibility | None = None


PING_SECONDS = 5
LOOK_SECONDS = 0.5
"""After events, before the next ones of one stream."""
_SUBMIT_CODES = ("validation_error", "empty_document", "too_large", "type_mismatch", "forbidden")
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": 'A line `data: {"type": "job", "job": {…}}` and a blank line for each change of a job.',
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
router = APIRouter(prefix="/documents", tags=["documents"], responses=COMMON_ERRORS)


@router.post("/upload/async", responses=error_responses(*_SUBMIT_CODES))
async def upload_async(
    form: Annotated[UploadForm, Form(media_type="multipart/form-data")],
    user: CurrentUser,
    language: CurrentLanguage,
    services: CurrentServices,
) -> JobAccepted:
    """Add a document, or the next version of the one with that name; the job tells when it can be asked about."""
    job = await services.knowledge.jobs.submit(user, form.file.filename or "", form.file.file, form.visibility)
    return JobAccepted(job_id=job.id, filename=job.filename, message=say("job_upload_pending", language))


@router.post("/batch", responses=error_responses("validation_error", "too_large", "forbidden"))
async def upload_batch(
    form: Annotated[BatchForm, Form(media_type="multipart/form-data")],
    user: CurrentUser,
    language: CurrentLanguage,
    services: CurrentServices,
) -> BatchResponse:
    """Add several documents, and those in zip files: each gets a job of its own, or a code that says why not."""
    files = [Incoming(item.filename or "", item.file) for item in form.file]
    outcomes = await services.knowledge.batches.submit(user, files, form.visibility)
    accepted = sum(1 for outcome in outcomes if outcome.job_id is not None)
    listed = [_batch_file(outcome, language) for outcome in outcomes]
    return BatchResponse(files=listed, accepted=accepted, refused=len(outcomes) - accepted)


@router.get("/upload/jobs")
async def upload_jobs(user: CurrentUser, language: CurrentLanguage, services: CurrentServices) -> JobList:
    """The last uploads, newest first: one's own, for admins those of shared documents too."""
    jobs = await services.knowledge.jobs.newest(user, "upload")
    return JobList(jobs=[job_info(job, language) for job in jobs])


@router.get("/upload/jobs/{job_id}", responses=error_responses("not_found"))
async def upload_job(
    job_id: PathId, user: CurrentUser, language: CurrentLanguage, services: CurrentServices
) -> JobInfo:
    """How far an upload is."""
    return job_info(await services.knowledge.jobs.get(user, "upload", job_id), language)


@router.post("/upload/jobs/{job_id}/cancel", responses=error_responses("not_found"))
async def cancel_upload(
    job_id: PathId, user: CurrentUser, language: CurrentLanguage, services: CurrentServices
) -> JobInfo:
    """End an upload within seconds, as failed with the code `cancelled`; one that has ended stays as it is."""
    return job_info(await services.knowledge.jobs.cancel(user, job_id), language)


@router.delete("/delete/async/{filename}", responses=error_responses("forbidden", "not_found"))
async def delete_async(
    filename: str,
    user: CurrentUser,
    language: CurrentLanguage,
    services: CurrentServices,
    document_id: Annotated[UUID | None, Query()] = None,
) -> JobAccepted:
    """Remove a document: it answers no more at once, and the job tells when nothing of it is left."""
    job = await services.knowledge.jobs.submit_delete(user, filename, document_id)
    return JobAccepted(job_id=job.id, filename=job.filename, message=say("job_delete_pending", language))


@router.get("/delete/jobs/{job_id}", responses=error_responses("not_found"))
async def delete_job(
    job_id: PathId, user: CurrentUser, language: CurrentLanguage, services: CurrentServices
) -> JobInfo:
    """How far a deletion is."""
    return job_info(await services.knowledge.jobs.get(user, "delete", job_id), language)


@router.get("/jobs/stream", responses=_STREAM, response_class=EventSourceResponse)
async def job_stream(user: CurrentUser, language: CurrentLanguage, services: CurrentServices) -> EventSourceResponse:
    """Every job that has not ended, and each change from now on, until the client leaves."""
    return EventSourceResponse(
        _changes(services, user, language),
        headers={"Cache-Control": "no-cache, no-transform"},
        ping=PING_SECONDS,
        ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
        sep="\n",
        send_timeout=services.chat.config.send_timeout_seconds,
    )


def _batch_file(outcome: Outcome, language: Language) -> BatchFile:
    return BatchFile(
        filename=outcome.filename,
        archive=outcome.archive,
        job_id=outcome.job_id,
        code=outcome.code,
        error=say(outcome.code, language) if outcome.code else None,
    )


async def _changes(services: Services, user: Principal, language: Language) -> AsyncGenerator[bytes]:
    since: datetime | None = None
    sent: dict[UUID, datetime] = {}
    desk = services.knowledge.jobs
    async with desk.news.listening():
        while True:
            change = desk.news.next
            try:
                jobs = await desk.changed(user, since)
                if since is None and not jobs:
                    since = await desk.now()
            except StorageUnavailable:  # the client may come back
                return
            news = [job for job in jobs if sent.get(job.id) != job.updated_at]
            if news:
                since = news[-1].updated_at
                sent = {job.id: job.updated_at for job in jobs}
                yield b"".join(_event(job_info(job, language)) for job in news)
                await asyncio.sleep(LOOK_SECONDS)
            else:
                await desk.news.wait(change)


def _event(job: JobInfo) -> bytes:
    return frame(orjson.dumps({"type": "job", "job": job.model_dump(mode="json")}), None)
