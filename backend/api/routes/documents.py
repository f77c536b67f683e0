"""The library of documents."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Form, Query, UploadFile
from pydantic import ConfigDict

from backend.api.deps import CurrentLanguage, CurrentServices, CurrentUser
from backend.api.errors import COMMON_ERRORS, error_responses
from backend.catalogue import say
from backend.errors import DocumentError
from backend.schemas.base import StrictSchema
from backend.schemas.documents import (
    DocumentDeleteResponse,
    DocumentListResponse,
    DocumentUploadResponse,
    Visibility,
)


class UploadForm(StrictSchema):
    """The multipart form of an upload. The owner is who asks, whatever a form says."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    file: UploadFile
    visibility: Visibility | None = None


_UPLOAD_CODES = (
    "validation_error",
    *sorted(DocumentError.CODES),
    "too_large",
    "type_mismatch",
    "forbidden",
    "not_found",
    "cancelled",
    "provider_unavailable",
    "provider_rate_limited",
    "provider_rejected",
    "provider_protocol",
    "provider_timeout",
)
router = APIRouter(prefix="/documents", tags=["documents"], responses=COMMON_ERRORS)


@router.get("")
async def documents(user: CurrentUser, services: CurrentServices) -> DocumentListResponse:
    """Shared documents and one's own, newest first."""
    return DocumentListResponse(documents=await services.knowledge.list_documents(user))


@router.post("/upload", responses=error_responses(*_UPLOAD_CODES))
async def upload(
    form: Annotated[UploadForm, Form(media_type="multipart/form-data")],
    user: CurrentUser,
    language: CurrentLanguage,
    services: CurrentServices,
) -> DocumentUploadResponse:
    """Add a document, or the next version of the one with that name; answers when it can be asked about."""
    result = await services.knowledge.upload(user, form.file.filename or "", form.file.file, form.visibility)
    message = say("document_ready", language)
    return DocumentUploadResponse(filename=result.filename, chunks_processed=result.chunks_processed, message=message)


@router.delete("/{filename}", responses=error_responses("forbidden", "not_found"))
async def delete(
    filename: str,
    user: CurrentUser,
    language: CurrentLanguage,
    services: CurrentServices,
    document_id: Annotated[UUID | None, Query()] = None,
) -> DocumentDeleteResponse:
    """Remove a document: one's own private one of that name first, then a shared one if one may."""
    result = await services.knowledge.delete(user, filename, document_id)
    message = say("document_deleted", language)
    return DocumentDeleteResponse(filename=result.filename, chunks_deleted=result.chunks_deleted, message=message)
