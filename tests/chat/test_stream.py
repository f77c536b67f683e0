"""From the agent's chunks to the answer: text, steps, usage, finish reason, flags."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage

from backend.catalogue import say
from backend.chat.stream import AnswerStream


def chunk(content: str = "", id: str = "one", finish: str | None = None, usage: tuple[int, int] | None = None) -> Any:
    message = AIMessageChunk(content=content, id=id, response_metadata={"finish_reason": finish} if finish else {})
    if usage:
        message.usage_metadata = {"input_tokens": usage[0], "output_tokens": usage[1], "total_tokens": sum(usage)}
    return message


def stream(*messages: Any, valid: int = 0) -> tuple[AnswerStream, list[str]]:
    """An answer of these messages, and what was sent."""
    answer = AnswerStream(lambda number: 1 <= number <= valid)
    sent = [answer.feed("messages", (message, {})) for message in messages]
    sent.append(answer.closing("en"))
    return answer, [text for text in sent if text]


def test_the_stored_text_is_what_was_sent():
    answer, sent = stream(chunk("Hello "), chunk("wor"), chunk("ld"), chunk(finish="stop"))
    assert sent == ["Hello ", "wor", "ld"]
    assert answer.text == "Hello world"
    assert answer.finish_reason == "stop"
    assert answer.flags == []


def test_steps_stand_apart_by_a_blank_line_that_is_sent_too():
    answer, sent = stream(
        chunk("Let me look.", id="one"),
        chunk(id="one", finish="tool_calls"),
        ToolMessage("[1] secret", tool_call_id="c"),
        chunk("Found ", id="two"),
        chunk("it.", id="two", finish="stop"),
    )
    assert "".join(sent) == answer.text == "Let me look.\n\nFound it."
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize("silent", ["one", "two"])
def test_a_step_without_text_gives_no_blank_line(silent: str):
    texts = {"one": "a", "two": "b", silent: ""}
    answer, _ = stream(chunk(texts["one"], id="one"), chunk(texts["two"], id="two"))
    assert answer.text in {"a", "b"}


def test_text_held_back_at_the_end_of_a_step_is_not_lost():
    answer, _ = stream(chunk("see [", id="one"), chunk("more", id="two"))
    assert answer.text == "see [\n\nmore"


def test_a_thought_that_is_not_closed_ends_with_its_step():
    answer, _ = stream(chunk("a <think>hm", id="one"), chunk("b", id="two"))
    assert answer.text == "a \n\nb"


def test_a_citation_does_not_go_over_two_steps():
    answer, _ = stream(chunk("a [", id="one"), chunk("1] b", id="two"), valid=3)
    assert answer.text == "a [\n\n1] b"
    assert answer.cited == set()


def test_usage_is_the_sum_of_all_calls():
    answer, _ = stream(chunk("a", usage=(10, 2)), chunk("b", id="two", usage=(20, 3)))
    assert answer.usage is not None
    assert answer.usage.model_dump() == {"input_tokens": 30, "output_tokens": 5, "total_tokens": 35}
    answer.count({"input_tokens": 1, "output_tokens": 1, "total_tokens": 2})
    answer.count(None)
    assert answer.usage.model_dump() == {"input_tokens": 31, "output_tokens": 6, "total_tokens": 37}


def test_no_usage_is_none():
    answer, _ = stream(chunk("a"))
    assert answer.usage is None


@pytest.mark.parametrize(
    ("raw", "reason", "flags"),
    [
        ("stop", "stop", []),
        ("tool_calls", "stop", []),
        ("length", "length", ["truncated"]),
        ("content_filter", "content_filter", []),
        ("insufficient_system_resource", "other", []),
        ("something new", "other", []),
    ],
)
def test_e07_finish_reason(raw: str, reason: str, flags: list[str]):
    answer, _ = stream(chunk("text"), chunk(finish=raw))
    assert answer.finish_reason == reason
    assert answer.flags == flags


def test_e07_a_withheld_answer_is_a_defined_message():
    answer, sent = stream(chunk(finish="content_filter"))
    assert sent == [answer.text] == [say("content_filtered", "en")]
    assert answer.flags == []


def test_an_empty_answer_is_flagged():
    answer, _ = stream(chunk("<think>only thoughts"), chunk(finish="stop"))
    assert answer.text == ""
    assert answer.flags == ["empty_answer"]


def test_a_spent_budget_is_flagged():
    budget = AIMessage(content="That is all.", id="end", response_metadata={"finish_reason": "limit"})
    answer, sent = stream(chunk("a", id="one"), budget)
    assert sent[-1] == "\n\nThat is all."
    assert answer.finish_reason == "limit"
    assert answer.flags == ["limit_reached"]


def test_the_flag_comes_by_an_update_too():
    answer = AnswerStream(lambda _: False)
    assert answer.feed("updates", {"a": None, "b": {"limit_reached": True}}) == ""
    answer.feed("messages", (chunk("x"), {}))
    assert answer.flags == ["limit_reached"]


def test_nul_and_surrogates_of_a_model_are_cleaned():
    answer, _ = stream(chunk("a\x00b"), chunk("c\ud800"))
    assert answer.text == "abc\ufffd"


def test_a_number_that_was_not_shown_is_dropped_and_a_shown_one_counted():
    answer, _ = stream(chunk("x [1"), chunk("] y [7]"), valid=2)
    assert answer.text == "x [1] y "
    assert answer.cited == {1}


def test_what_another_model_said_in_place_of_the_provider_is_flagged():
    call = AIMessageChunk(content="", id="one", response_metadata={"finish_reason": "tool_calls", "degraded": True})
    answer, _ = stream(call, chunk("Quoted.", id="two", finish="stop"))
    assert answer.flags == ["degraded"]
