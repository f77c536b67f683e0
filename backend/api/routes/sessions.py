"""The conversations of a user."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator

from backend.api.deps import CurrentLanguage, CurrentServices, CurrentUser
from backend.api.errors import COMMON_ERRORS, error_responses
from backend.schemas.chat import (
    SESSION_ID_PATTERN,
    HitlDismissResponse,
    SessionDeleteResponse,
    SessionInfo,
    SessionListResponse,
    SessionMessagesResponse,
    SessionPatch,
)

router = APIRouter(prefix="/sessions", tags=["sessions"], responses=COMMON_ERRORS)


def _not_relative(session_id: str) -> str:
    if session_id in {".", ".."}:
        raise ValueError("must not be a relative path")
    return session_id


SessionId = Annotated[str, Path(pattern=SESSION_ID_PATTERN), AfterValidator(_not_relative)]
Cursor = Annotated[str | None, Query(max_length=200)]


@router.get("")
async def sessions(
    user: CurrentUser,
    services: CurrentServices,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Cursor = None,
) -> SessionListResponse:
    """Sessions, newest first."""
    return await services.chat.sessions(user, limit, cursor)


@router.get("/{session_id}")
async def messages(
    session_id: SessionId,
    user: CurrentUser,
    services: CurrentServices,
    limit: Annotated[int, Query(ge=1, le=500)] = 500,
    before: Cursor = None,
) -> SessionMessagesResponse:
    """The last messages of a session, ascending; `before` goes further back. Empty if it was not used yet.

    `hitl` is the question back that waits for an answer, if one does.
    """
    return await services.chat.messages(user, session_id, limit, before)


@router.patch("/{session_id}", responses=error_responses("not_found", "too_large"))
async def rename(
    session_id: SessionId, body: SessionPatch, user: CurrentUser, services: CurrentServices
) -> SessionInfo:
    """Give a session a title."""
    return await services.chat.rename(user, session_id, body.title)


@router.delete("/{session_id}", responses=error_responses("not_found"))
async def delete(
    session_id: SessionId, user: CurrentUser, language: CurrentLanguage, services: CurrentServices
) -> SessionDeleteResponse:
    """Delete a session; a live answer is stopped first."""
    return await services.chat.delete(user, session_id, language)


@router.post("/{session_id}/hitl/dismiss", responses=error_responses("not_found"))
async def dismiss_hitl(
    session_id: SessionId, user: CurrentUser, language: CurrentLanguage, services: CurrentServices
) -> HitlDismissResponse:
    """Let a question back wait no longer: the next message is a new question. Fine when none waits."""
    return await services.chat.dismiss_hitl(user, session_id, language)
