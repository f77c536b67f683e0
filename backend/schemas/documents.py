"""Documents on the wire."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from backend.schemas.base import StrictSchema

Visibility = Literal["shared", "private"]
DocumentStatus = Literal["processing", "ready", "failed"]


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
