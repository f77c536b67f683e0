"""How the stream of a run ends: the same events whether they are made at the end or rebuilt from the rows later."""

from collections.abc import Iterable

from backend.chat.hitl import hitl_info
from backend.chat.records import EventBatch, RunRef, RunRow, TurnEnd
from backend.schemas.chat import (
    ChatEvent,
    CitationsEvent,
    DoneEvent,
    ErrorEvent,
    HitlRequestEvent,
    MessageInfo,
    TraceEvent,
    encode_event,
)


def tail_events(ref: RunRef, end: TurnEnd) -> list[ChatEvent]:
    """``trace`` and ``citations`` exactly once, ``hitl_request`` or ``error`` if there was one, ``done`` last.

    Not numbered yet.
    """
    events: list[ChatEvent] = [TraceEvent(rag_trace=end.rag_trace), CitationsEvent(citations=end.citations)]
    if end.asks is not None:
        events.append(HitlRequestEvent(hitl=hitl_info(end.asks)))
    if end.error is not None:
        events.append(ErrorEvent(**end.error.model_dump()))
    events.append(
        DoneEvent(
            run_id=str(ref.run_id),
            message_id=str(ref.message_id),
            status=end.status,
            usage=end.usage,
            finish_reason=end.finish_reason,
            flags=end.flags,
        )
    )
    return events


def stored_end(run: RunRow, message: MessageInfo) -> TurnEnd:
    """The end of a terminal run as its rows tell it."""
    return TurnEnd(
        status=run.status,
        content=message.content,
        rag_trace=message.rag_trace,
        citations=message.citations,
        usage=message.usage,
        finish_reason=run.finish_reason,
        flags=message.flags,
        error=run.error,
        asks=run.asks,
    )


def numbered(run: RunRef, events: Iterable[ChatEvent], first_seq: int) -> EventBatch:
    """``events`` as a batch that begins at ``first_seq``."""
    encoded: list[bytes] = []
    for offset, event in enumerate(events):
        event.seq = first_seq + offset
        encoded.append(encode_event(event))
    return EventBatch(run.run_id, first_seq, encoded)
