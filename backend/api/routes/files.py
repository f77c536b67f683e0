"""The files of a conversation: what the user puts in, and what the assistant hands over."""

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Annotated, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, Form, Header, Path, UploadFile
from pydantic import ConfigDict
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from backend.api.deps import CurrentLanguage, CurrentServices, CurrentUser
from backend.api.errors import COMMON_ERRORS, error_responses
from backend.api.routes.sessions import SessionId
from backend.catalogue import say
from backend.chat.thread_files import IncomingFile, OpenedFile
from backend.infra.media import served_type
from backend.schemas.base import StrictSchema
from backend.schemas.files import ArtifactListResponse, UploadDeleteResponse, UploadListResponse

CHUNK_BYTES = 64 * 1024
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "Accept-Ranges": "bytes",
}


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
    return _response(found, range_)


class _FileResponse(StreamingResponse):
    """Closes the file, also when nothing of it could be sent."""

    def __init__(self, content: BinaryIO, start: int, end: int, status: int, headers: dict[str, str]) -> None:
        super().__init__(_chunks(content, start, end), status, headers)
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._content.close()


def _response(found: OpenedFile, asked: str | None) -> StreamingResponse:
    start, end = _range(asked, found.size) or (0, found.size)
    headers = {
        **_HEADERS,
        "Content-Length": str(end - start),
        "Content-Disposition": f"attachment; filename*=utf-8''{quote(found.filename, safe='')}",
        "Content-Type": served_type(found.mime_type),
    }
    part = end - start < found.size
    if part:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{found.size}"
    return _FileResponse(found.content, start, end, 206 if part else 200, headers)


def _range(asked: str | None, size: int) -> tuple[int, int] | None:
    """The one range of a header, as ``[start, end)``; ``None`` when the whole file is to be sent, which RFC 9110 (14.2)
    allows for several ranges and for what is none."""
    match = _RANGE.fullmatch((asked or "").strip())
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
    return (start, end) if start < end else None


async def _chunks(content: BinaryIO, start: int, end: int) -> AsyncGenerator[bytes]:
    await asyncio.to_thread(content.seek, start)
    while start < end and (chunk := await asyncio.to_thread(content.read, min(CHUNK_BYTES, end - start))):
        start += len(chunk)
        yield chunk
