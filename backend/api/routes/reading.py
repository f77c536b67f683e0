"""Reading a document: what stands around a citation, a page, the original."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Path
from starlette.responses import StreamingResponse

from backend.api.attachments import attachment
from backend.api.deps import CurrentServices, CurrentUser, PathId
from backend.api.errors import COMMON_ERRORS, error_responses
from backend.knowledge.document_reader import open_original
from backend.schemas.reading import DocumentPage, DocumentPassage

router = APIRouter(prefix="/documents/{document_id}", tags=["documents"], responses=COMMON_ERRORS)


@router.get("/chunks/{chunk_id}", responses=error_responses("not_found"))
async def passage(
    document_id: PathId, chunk_id: PathId, user: CurrentUser, services: CurrentServices
) -> DocumentPassage:
    """The passage of a citation, with what stands before and after it; of the version that answers now."""
    return await services.knowledge.reader.passage(user.id, document_id, chunk_id)


@router.get("/pages/{page}", responses=error_responses("not_found"))
async def page(
    document_id: PathId,
    page: Annotated[int, Path(ge=1, le=1_000_000)],
    user: CurrentUser,
    services: CurrentServices,
) -> DocumentPage:
    """The text of a page, from 1, 200,000 characters of it at most. Formats without pages have the one page."""
    return await services.knowledge.reader.page(user.id, document_id, page)


@router.get(
    "/original",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"application/octet-stream": {}}, "description": "The file."},
        206: {"content": {"application/octet-stream": {}}, "description": "The range of it that was asked for."},
        **error_responses("not_found"),
    },
)
async def original(
    document_id: PathId,
    user: CurrentUser,
    services: CurrentServices,
    range_: Annotated[str | None, Header(alias="Range", max_length=200)] = None,
) -> StreamingResponse:
    """The file as it was uploaded, to be saved. One range can be asked for."""
    filename, path = await services.knowledge.reader.find_original(user.id, document_id)
    found = await asyncio.to_thread(open_original, filename, path)
    return attachment(found.filename, found.content, found.size, asked=range_)
