"""What a session row keeps of a thread, whatever wrote it and whatever a tool says."""

from backend.chat.thread_record import MAX_ARTIFACTS, MAX_TODO_CHARS, MAX_TODOS, ThreadRecord
from backend.schemas.chat import ArtifactsEvent, TodosEvent


def test_d01_nul_and_surrogates_do_not_reach_row_and_frames():
    record = ThreadRecord({"artifacts": ["old\x00"]}, None)
    events = record.feed(
        {"tools": [{"artifacts": ["a\x00b", "\ud800"]}, {"todos": [{"content": "x\x00\udfff", "status": "pending"}]}]}
    )
    assert record.stored == {
        "artifacts": ["old", "ab", "\ufffd"],
        "todos": [{"content": "x\ufffd", "status": "pending"}],
    }
    first, second = events
    assert isinstance(first, ArtifactsEvent)
    assert isinstance(second, TodosEvent)
    assert (first.artifacts, second.todos[0].content) == (["old", "ab", "\ufffd"], "x\ufffd")


def test_d07_a_row_is_bounded_and_holds_no_image():
    record = ThreadRecord({}, "t")
    record.feed({"tools": {"artifacts": [f"f{number}" for number in range(2 * MAX_ARTIFACTS)]}})
    todo = {"content": "x" * 2 * MAX_TODO_CHARS, "status": "pending"}
    record.feed({"tools": {"todos": [todo] * 2 * MAX_TODOS, "viewed_images": {"a": {"base64": "AA"}}}})
    stored = record.stored
    assert stored is not None
    assert set(stored) == {"artifacts", "todos"}
    assert (len(stored["artifacts"]), stored["artifacts"][-1]) == (MAX_ARTIFACTS, f"f{2 * MAX_ARTIFACTS - 1}")
    assert (len(stored["todos"]), len(stored["todos"][0]["content"])) == (MAX_TODOS, MAX_TODO_CHARS)


def test_what_does_not_change_is_neither_told_nor_written():
    record = ThreadRecord({"artifacts": ["a"], "todos": []}, None)
    assert record.feed({"model": None, "tools": {"artifacts": ["a"], "todos": [], "messages": []}}) == []
    assert record.stored is None
    assert record.initial == {"artifacts": ["a"], "todos": []}
