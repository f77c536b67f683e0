"""The library of documents."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Form, Query, UploadFile
from pydantic import ConfigDict

from backend.api.deps import CurrentServices, CurrentUser
from backend.api.errors import error_responses
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


router = APIRouter(prefix="/documents", tags=["documents"], responses=error_responses(401, 422, 503))


@router.get("")
async def documents(user: CurrentUser, services: CurrentServices) -> DocumentListResponse:
    """Shared documents and one's own, newest first."""
    return DocumentListResponse(documents=await services.knowledge.list_documents(user))


@router.post("/upload", responses=error_responses(403, 413, 415))
async def upload(
    form: Annotated[UploadForm, Form(media_type="multipart/form-data")],
    user: CurrentUser,
    services: CurrentServices,
) -> DocumentUploadResponse:
    """Add a document, or the next version of the one with that name; answers when it can be asked about."""
    content = await form.file.read()
    result = await services.knowledge.upload(user, form.file.filename or "", content, form.visibility)
    return DocumentUploadResponse(filename=result.filename, chunks_processed=result.chunks_processed, message="ready")


@router.delete("/{filename}", responses=error_responses(403, 404))
async def delete(
    filename: str,
    user: CurrentUser,
    services: CurrentServices,
    document_id: Annotated[UUID | None, Query()] = None,
) -> DocumentDeleteResponse:
    """Remove a document: one's own private one of that name first, then a shared one if one may."""
    result = await services.knowledge.delete(user, filename, document_id)
    return DocumentDeleteResponse(filename=result.filename, chunks_deleted=result.chunks_deleted, message="deleted")
