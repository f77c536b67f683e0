import asyncio
import threading
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.chat.request_context import ChatRequestContext, StoredTrace
from backend.schemas.chat import ChatEvent, HitlResumeState, RagStepEvent

UNHURRIED = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
TRACE = {"tool_used": True, "query": "why", "unknown": 1, "recall_count": "many"}
SNAPSHOT = {"question": "why", "route": "clarify", "retrieval_status": "needs_clarification"}


def watched(maxsize: int = 0) -> tuple[ChatRequestContext, asyncio.Queue[ChatEvent]]:
    queue: asyncio.Queue[ChatEvent] = asyncio.Queue(maxsize)
    return ChatRequestContext.for_stream(uuid4(), "s", queue), queue


async def drained(queue: asyncio.Queue[ChatEvent]) -> list[RagStepEvent]:
    await asyncio.sleep(0)  # what other threads handed over arrives with the next round of the loop
    events = [queue.get_nowait() for _ in range(queue.qsize())]
    assert all(isinstance(event, RagStepEvent) for event in events)
    return events  # type: ignore[return-value]


async def test_sync_context_has_user_session_language_and_no_queue():
    user = uuid4()
    ctx = ChatRequestContext.for_sync(user, "s", language="zh")
    assert (ctx.user_id, ctx.session_id, ctx.language, ctx.output_queue) == (user, "s", "zh", None)
    ctx.emit_rag_step("i", "goes nowhere")


def test_stream_context_needs_a_loop():
    with pytest.raises(RuntimeError):
        ChatRequestContext.for_stream(uuid4(), "s", asyncio.Queue())


async def test_step_arrives_with_its_fields():
    ctx, queue = watched()
    ctx.emit_rag_step("🔍", "label", "detail", group="g", group_label="G")
    ctx.emit_rag_step("x", "second")
    first, second = await drained(queue)
    assert first.seq == 0
    assert (first.step.icon, first.step.label, first.step.detail) == ("🔍", "label", "detail")
    assert (first.step.group, first.step.group_label) == ("g", "G")
    assert second.step.detail == ""
    assert second.step.group is None


async def test_step_text_can_always_be_encoded():
    ctx, queue = watched()
    ctx.emit_rag_step("i", "a\ud800b", "{0.__class__} %s \x00")
    (event,) = await drained(queue)
    assert event.step.label == "a\ufffdb"
    assert event.step.detail == "{0.__class__} %s "
    event.model_dump_json()


@UNHURRIED
@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=20))
def test_times_add_up_and_never_go_back(waits: list[float]):
    async def run(monkeypatch: pytest.MonkeyPatch) -> list[RagStepEvent]:
        now = 1000.0
        monkeypatch.setattr("backend.chat.request_context.time.monotonic", lambda: now)
        ctx, queue = watched()
        for wait in waits:
            now += wait
            ctx.emit_rag_step("i", "l")
        return await drained(queue)

    loop = asyncio.new_event_loop()
    with pytest.MonkeyPatch.context() as monkeypatch:
        # the loop's own clock must go on
        monkeypatch.setattr(loop, "time", lambda: 0.0)
        events = loop.run_until_complete(run(monkeypatch))
    loop.close()
    elapsed = [event.step.elapsed_ms for event in events]
    assert elapsed == sorted(elapsed)
    assert [event.step.stage_elapsed_ms for event in events] == [pytest.approx(wait * 1000, abs=1e-2) for wait in waits]
    assert elapsed[-1] == pytest.approx(sum(waits) * 1000, abs=1e-2)


async def test_steps_of_many_threads_arrive_whole_and_in_order_of_their_times():
    ctx, queue = watched()
    threads = [
        threading.Thread(target=lambda name=name: [ctx.emit_rag_step("i", str(name)) for _ in range(200)])
        for name in range(8)
    ]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    events = await drained(queue)
    assert len(events) == 1600
    elapsed = [event.step.elapsed_ms for event in events]
    assert elapsed == sorted(elapsed)
    assert all(event.step.stage_elapsed_ms >= 0 for event in events)


async def test_full_queue_drops_the_step_quietly():
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    ctx, queue = watched(maxsize=1)
    ctx.emit_rag_step("i", "kept")
    ctx.emit_rag_step("i", "dropped")
    (event,) = await drained(queue)
    assert event.step.label == "kept"
    assert errors == []


def test_closed_loop_is_no_error():
    loop = asyncio.new_event_loop()
    ctx = ChatRequestContext.for_stream(uuid4(), "s", asyncio.Queue(), loop)
    loop.close()
    ctx.emit_rag_step("i", "l")


async def test_trace_is_normalized_and_snapshot_validated():
    ctx = ChatRequestContext.for_sync(uuid4(), "s")
    ctx.store_rag_trace(TRACE, SNAPSHOT)
    expected = StoredTrace({"tool_used": True, "query": "why"}, HitlResumeState.model_validate(SNAPSHOT))
    assert ctx.peek_rag_trace() == expected
    with pytest.raises(ValueError, match="route"):
        ctx.store_rag_trace(TRACE, {**SNAPSHOT, "route": "nowhere"})
    assert ctx.peek_rag_trace() == expected


async def test_peek_leaves_and_take_clears_both():
    ctx = ChatRequestContext.for_sync(uuid4(), "s")
    assert ctx.peek_rag_trace() is None
    assert ctx.take_rag_trace() is None
    ctx.store_rag_trace(TRACE)
    assert ctx.peek_rag_trace() == StoredTrace({"tool_used": True, "query": "why"}, None)
    assert ctx.take_rag_trace() == StoredTrace({"tool_used": True, "query": "why"}, None)
    assert ctx.take_rag_trace() is None
    assert ctx.peek_rag_trace() is None


async def test_a_trace_without_anything_valid_is_none():
    ctx = ChatRequestContext.for_sync(uuid4(), "s")
    ctx.store_rag_trace({"unknown": 1})
    assert ctx.take_rag_trace() is None


async def test_one_slot_until_reset():
    ctx = ChatRequestContext.for_sync(uuid4(), "s")
    assert [ctx.acquire_knowledge_tool_slot() for _ in range(3)] == [True, False, False]
    ctx.reset_knowledge_tool_budget()
    assert [ctx.acquire_knowledge_tool_slot() for _ in range(2)] == [True, False]


def test_one_of_many_threads_gets_the_slot():
    ctx = ChatRequestContext.for_sync(uuid4(), "s")
    got: list[bool] = []
    barrier = threading.Barrier(16)

    def grab() -> None:
        barrier.wait()
        got.append(ctx.acquire_knowledge_tool_slot())

    threads = [threading.Thread(target=grab) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 15 + [True]


async def test_closed_context_takes_and_sends_nothing():
    ctx, queue = watched()
    ctx.store_rag_trace(TRACE)
    ctx.close()
    ctx.close()
    ctx.emit_rag_step("i", "late")
    ctx.store_rag_trace({"query": "late"})
    assert ctx.output_queue is None
    assert await drained(queue) == []
    assert ctx.acquire_knowledge_tool_slot() is False
    assert ctx.take_rag_trace() == StoredTrace({"tool_used": True, "query": "why"}, None)
