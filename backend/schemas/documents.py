"""Documents on the wire."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from backend.schemas.base import StrictSchema

Visibility = Literal["shared", "private"]
DocumentStatus = Literal["processing", "ready", "failed"]
JobKind = Literal["upload", "delete"]
JobStatus = Literal["pending", "running", "completed", "failed"]


class DocumentInfo(StrictSchema):
    """One document of the library. ``chunk_count`` counts leaves, ``pages`` is null for formats without pages."""

    filename: str
    file_type: str
    chunk_count: int
    uploaded_at: datetime
    document_id: UUID
    visibility: Visibility
    status: DocumentStatus
    pages: int | None


class DocumentListResponse(StrictSchema):
    """The shared documents and the caller's own, newest first."""

    documents: list[DocumentInfo]


class DocumentUploadResponse(StrictSchema):
    """The document answers from now on; ``chunks_processed`` counts leaves."""

    filename: str
    chunks_processed: int
    message: str


class DocumentDeleteResponse(StrictSchema):
    """The document answers no more; ``chunks_deleted`` counts leaves."""

    filename: str
    chunks_deleted: int
    message: str


class JobAccepted(StrictSchema):
    """A job was stored and goes on by itself; its route tells how far it is."""

    job_id: UUID
    filename: str
    message: str


class BatchFile(StrictSchema):
    """One file of a batch: its job, or ``code`` and ``error``, which say why there is none.

    ``archive`` is the zip file that it came in.
    """

    filename: str
    archive: str | None
    job_id: UUID | None
    code: str | None
    error: str | None


class BatchResponse(StrictSchema):
    """Every file of the request and of its zip files, in their order."""

    files: list[BatchFile]
    accepted: int
    refused: int


class JobStep(StrictSchema):
    """One step of a job; ``label`` and ``message`` are for people."""

    key: str
    label: str
    percent: int
    status: JobStatus
    message: str


class JobInfo(StrictSchema):
    """A job. ``total_chunks`` is known after parsing; ``code`` and ``error`` say why it failed, by code and in words.

    A cancelled job is ``failed`` with the code ``cancelled``.
    """

    job_id: UUID
    filename: str
    status: JobStatus
    current_step: str
    message: str
    total_chunks: int
    processed_chunks: int
    error: str | None
    code: str | None
    warnings: list[str]
    created_at: datetime
    updated_at: datetime
    steps: list[JobStep]


class JobList(StrictSchema):
    """Jobs, newest first."""

    jobs: list[JobInfo]
