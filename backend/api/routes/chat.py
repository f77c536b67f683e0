"""Ask, watch, stop."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Header, Query
from sse_starlette import EventSourceResponse, ServerSentEvent

from backend.api.deps import CurrentLanguage, CurrentServices, CurrentUser, PathId, Services
from backend.api.errors import COMMON_ERRORS, error_responses
from backend.api.event_stream import EventStream
from backend.chat.subscription import LoggedEvent, StreamCut
from backend.errors import AppError
from backend.protocols.native import DONE, frame
from backend.schemas.chat import ChatRequest, ChatResponse, MessageInfo, RunInfo, StopResponse

PING_SECONDS = 5
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "`ChatEvent`s, each one line `data: {…}` and a blank line; the last is `data: [DONE]`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},  # `ChatEvent`, see openapi.py
    }
}
_STREAM_ERRORS = error_responses("not_found")
_ASK_CODES = (
    "validation_error",
    "idempotency_key_mismatch",
    "message_too_large",
    "too_large",
    "idempotency_conflict",
    "run_active",
    "stale_hitl",
    "rate_limited",
    "too_many_runs",
    "storage_unavailable",
    "draining",
    "not_found",
)

router = APIRouter(prefix="/chat", tags=["chat"], responses=COMMON_ERRORS)
IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=200)]
Cursor = Annotated[int, Query(ge=0, le=2**62)]
LastEventId = Annotated[int, Header(ge=0, le=2**62)]


@router.post("", responses=error_responses(*_ASK_CODES))
async def chat(
    body: ChatRequest,
    user: CurrentUser,
    language: CurrentLanguage,
    services: CurrentServices,
    idempotency_key: IdempotencyKey = None,
) -> ChatResponse:
    """Ask and wait for the whole answer; 200 whatever the end of the turn, once it was accepted."""
    turn = await services.chat.start_turn(user, body, language, key=idempotency_key)
    return await services.chat.answer(user, turn)


@router.post("/stream", responses={**error_responses(*_ASK_CODES), **_STREAM}, response_class=EventSourceResponse)
async def chat_stream(
    body: ChatRequest,
    user: CurrentUser,
    language: CurrentLanguage,
    services: CurrentServices,
    idempotency_key: IdempotencyKey = None,
) -> EventSourceResponse:
    """Ask and watch. Leaving does not end the turn; come back by `GET /chat/runs/{run_id}/stream`."""
    turn = await services.chat.start_turn(user, body, language, key=idempotency_key)
    events = services.chat.follow(user, turn.run_id, 0)
    return _event_stream(services, turn.run_id, events, with_ids=False)


@router.get("/runs/{run_id}", responses=error_responses("not_found"))
async def run(run_id: PathId, user: CurrentUser, services: CurrentServices) -> RunInfo:
    """A run's status."""
    return await services.chat.run_info(user, run_id)


@router.get("/runs/{run_id}/stream", responses={**_STREAM_ERRORS, **_STREAM}, response_class=EventSourceResponse)
async def run_stream(
    run_id: PathId,
    user: CurrentUser,
    services: CurrentServices,
    after: Cursor = 0,
    last_event_id: LastEventId = 0,
) -> EventSourceResponse:
    """Watch a run from any place, while it goes on or long after: what is above the cursor, to the end."""
    await services.chat.run_info(user, run_id)
    events = services.chat.follow(user, run_id, max(after, last_event_id))
    return _event_stream(services, run_id, events, with_ids=True)


@router.post("/runs/{run_id}/stop", responses=error_responses("not_found"))
async def stop(run_id: PathId, user: CurrentUser, services: CurrentServices) -> StopResponse:
    """Stop a run; the text so far is kept. Stopping twice or after the end changes nothing."""
    return await services.chat.stop(user, run_id)


@router.get("/messages/{message_id}", responses=error_responses("not_found"))
async def message(message_id: PathId, user: CurrentUser, services: CurrentServices) -> MessageInfo:
    """One message."""
    return await services.chat.message(user, message_id)


def _event_stream(
    services: Services, run_id: UUID, events: AsyncGenerator[list[LoggedEvent]], *, with_ids: bool
) -> EventStream:
    return EventStream(
        _frames(events, with_ids=with_ids),
        headers={
            "Cache-Control": "no-cache, no-transform",
            "X-Run-Id": str(run_id),
            "Content-Location": f"/chat/runs/{run_id}/stream",
        },
        ping=PING_SECONDS,
        ping_message_factory=lambda: ServerSentEvent(comment="ping", sep="\n"),
        sep="\n",
        send_timeout=services.chat.config.send_timeout_seconds,
        # At shutdown every run is ended with its text; the streams have this long to tell it.
        shutdown_grace_period=services.chat.config.shutdown_grace_seconds,
    )


async def _frames(events: AsyncGenerator[list[LoggedEvent]], *, with_ids: bool) -> AsyncGenerator[bytes]:
    try:
        async for batch in events:
            yield b"".join(frame(event.data, event.seq if with_ids else None) for event in batch)
    except (StreamCut, AppError):  # PostgreSQL is away, or the session was deleted: the client may come back
        return
    finally:
        await events.aclose()
    yield DONE
