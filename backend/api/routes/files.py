"""The files of a conversation: what the user puts in, and what the assistant hands over."""

from typing import Annotated

from fastapi import APIRouter, Form, Header, Path, UploadFile
from pydantic import ConfigDict
from starlette.responses import StreamingResponse

from backend.api.attachments import attachment
from backend.api.deps import CurrentLanguage, CurrentServices, CurrentUser
from backend.api.errors import COMMON_ERRORS, error_responses
from backend.api.routes.sessions import SessionId
from backend.catalogue import say
from backend.chat.thread_files import IncomingFile
from backend.schemas.base import StrictSchema
from backend.schemas.files import ArtifactListResponse, UploadDeleteResponse, UploadListResponse


class UploadsForm(StrictSchema):
    """The multipart form of uploads: the field ``file``, as often as there are files."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    file: list[UploadFile]


router = APIRouter(prefix="/sessions/{session_id}", tags=["files"], responses=COMMON_ERRORS)


@router.post("/uploads", responses=error_responses("too_large", "not_found"))
async def upload(
    session_id: SessionId,
    form: Annotated[UploadsForm, Form(media_type="multipart/form-data")],
    user: CurrentUser,
    services: CurrentServices,
) -> UploadListResponse:
    """Put files into a conversation, which may be a new one; a file of the same name is replaced."""
    files = [IncomingFile(item.filename or "", item.file, item.size or 0) for item in form.file]
    return UploadListResponse(files=await services.files.upload(user, session_id, files))


@router.get("/uploads")
async def uploads(session_id: SessionId, user: CurrentUser, services: CurrentServices) -> UploadListResponse:
    """The files that were put into a conversation. Empty if it was not used yet."""
    return UploadListResponse(files=await services.files.uploads(user, session_id))


@router.delete("/uploads/{filename}", responses=error_responses("not_found"))
async def delete_upload(
    session_id: SessionId, filename: str, user: CurrentUser, language: CurrentLanguage, services: CurrentServices
) -> UploadDeleteResponse:
    """Remove a file from a conversation."""
    name = await services.files.delete_upload(user, session_id, filename)
    return UploadDeleteResponse(filename=name, message=say("upload_deleted", language))


@router.get("/artifacts")
async def artifacts(session_id: SessionId, user: CurrentUser, services: CurrentServices) -> ArtifactListResponse:
    """The files that the assistant handed over. Empty if the conversation was not used yet."""
    return ArtifactListResponse(artifacts=await services.files.artifacts(user, session_id))


@router.get(
    "/artifacts/{path:path}",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"application/octet-stream": {}}, "description": "The file."},
        206: {"content": {"application/octet-stream": {}}, "description": "The range of it that was asked for."},
        **error_responses("not_found"),
    },
)
async def artifact(
    session_id: SessionId,
    path: Annotated[str, Path(max_length=4_000)],
    user: CurrentUser,
    services: CurrentServices,
    range_: Annotated[str | None, Header(alias="Range", max_length=200)] = None,
) -> StreamingResponse:
    """A file of the conversation, to be saved: `outputs/report.md`. One range can be asked for."""
    found = await services.files.open_artifact(user, session_id, path)
    return attachment(found.filename, found.content, found.size, found.mime_type, asked=range_)
