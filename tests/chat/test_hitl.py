"""A question back as a value: what is kept, what it tells, and what answers it."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from backend.chat.hitl import (
    chosen_answer,
    hitl_info,
    pending_state,
    question_back,
    question_text,
    resume_of,
    safe_line,
)
from backend.chat.request_context import StoredTrace
from backend.rag.resume import MAX_CLARIFICATIONS, may_ask_again, refined_question
from backend.schemas.chat import HitlResumeState, PendingHitlState

STATE = HitlResumeState(question="How long?", route="clarify", retrieval_status="needs_clarification", rewrite_count=1)


def pending(**fields: Any) -> PendingHitlState:
    given: dict[str, Any] = {
        "id": "h",
        "original_question": "And how long?",
        "prompt": "Which one?",
        "options": ["A", "B"],
        "route": "clarify",
        "retrieval_status": "needs_clarification",
        "answers": [],
        "resume_state": STATE,
        "created_at": datetime.now(UTC),
        **fields,
    }
    return PendingHitlState(**given)


def asks(state: HitlResumeState = STATE, answered: PendingHitlState | None = None, **trace: Any) -> PendingHitlState:
    back = question_back(StoredTrace(trace, state), "And how long?", answered, "en")
    assert back is not None
    return back


def test_only_a_snapshot_makes_a_question_back():
    assert question_back(None, "q", None, "en") is None
    assert question_back(StoredTrace({"route": "answer"}, None), "q", None, "en") is None


def test_a_first_question_back_keeps_what_the_user_said_and_what_was_looked_up():
    back = asks(hitl_prompt="Which\n one?", hitl_options=["A", " A ", "", "B"])
    assert (back.prompt, back.options, back.answers) == ("Which one?", ["A", "B"], [])
    assert (back.original_question, back.resume_state) == ("And how long?", STATE)
    assert back.created_at.tzinfo is UTC
    assert hitl_info(back).model_dump() == {
        "id": back.id,
        "prompt": "Which one?",
        "options": ["A", "B"],
        "route": "clarify",
        "retrieval_status": "needs_clarification",
        "original_question": "And how long?",
    }
    assert asks().id != asks().id


def test_a_further_question_back_is_about_the_same_question_with_more_answers():
    refined = STATE.model_copy(update={"question": "How long? A", "rewrite_count": 0})
    answered = pending(answers=["2024"], original_question="First")
    back = question_back(StoredTrace({}, refined), "1", answered, "en")
    assert back is not None
    assert (back.original_question, back.answers) == ("First", ["2024", "A"])
    assert back.resume_state.question == "How long?"
    resume = resume_of(back, "Spain")
    assert refined_question(resume) == "How long? 2024; A; Spain"
    assert (may_ask_again(None), may_ask_again(resume), MAX_CLARIFICATIONS) == (True, False, 3)


@pytest.mark.parametrize(
    ("route", "trace", "prompt"),
    [
        ("clarify", {"hitl_prompt": "Mine?"}, "Mine?"),
        ("clarify", {"hitl_prompt": " \u200b"}, "What exactly do you mean?"),
        ("clarify", {"missing_slots": ["year", "<b>"]}, "Please tell me more precisely: year"),
        ("scope_select", {"missing_slots": ["year"]}, "Which of these do you mean?"),
    ],
)
def test_the_catalogue_asks_where_the_model_does_not(route: Any, trace: dict[str, Any], prompt: str):
    status: Any = "needs_clarification" if route == "clarify" else "needs_scope_selection"
    state = STATE.model_copy(update={"route": route, "retrieval_status": status})
    assert asks(state, **trace).prompt == prompt


def test_the_stored_text_is_prompt_heading_and_options():
    assert question_text(pending(), "en") == "Which one?\n\nYou can choose:\n- A\n- B"
    assert question_text(pending(), "zh") == "Which one?\n\n可选项：\n- A\n- B"
    assert question_text(pending(options=[]), "en") == "Which one?"


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        ("2", "B"),
        ("2.", "B"),
        ("(２)", "B"),
        ("- 1", "A"),
        ("b", "B"),
        (" a ", "A"),
        ("3", "3"),
        ("0", "0"),
        ("2 of them", "2 of them"),
        ("1 2", "1 2"),
        ("the\nother", "the other"),
        ("²", "²"),
    ],
)
def test_an_answer_is_an_option_or_free(message: str, answer: str):
    assert chosen_answer(["A", "B"], message) == answer


def test_the_text_of_an_option_goes_before_its_number():
    assert chosen_answer(["2", "1"], "1") == "1"
    assert chosen_answer([], "1") == "1"
    assert len(chosen_answer([], "x" * 100_000)) == 2_000


@given(st.text(max_size=50), st.lists(st.text(min_size=1, max_size=9), max_size=6))
def test_every_message_is_an_answer(message: str, options: list[str]):
    answer = chosen_answer(options, message)
    assert answer in options or answer == " ".join(message.split())


@pytest.mark.parametrize("stored", ["x", 7, [], {}, {"id": "h"}, {**pending().model_dump(mode="json"), "route": "x"}])
def test_what_cannot_be_read_is_no_question(stored: Any):
    assert pending_state(stored) is None


def test_what_was_stored_is_read_again():
    kept = pending(answers=["x"])
    assert pending_state(kept.model_dump(mode="json")) == kept
    assert pending_state(None) is None


ACTIVE = re.compile(r"\]\(|!\[|://|<[a-zA-Z/!?]|\[|javascript:|data:|vbscript:", re.IGNORECASE)


@given(st.text(alphabet="![]()<>/:ahtpsjvcript \n\u202e\u200b", max_size=60))
@example("[![x](https://e/)](https://e/)")
@example("htt[p](x)s://e")
@example("<<b>img src=//e>")
@example("java[s](x)cript:alert(1)")
@example("//https://e")
def test_j10_no_client_makes_something_active_of_a_safe_line(text: str):
    line = safe_line(text, 100)
    assert not ACTIVE.search(line)
    assert line == " ".join(line.split())
    assert not {"\u202e", "\u200b"} & set(line)
    assert safe_line(line, 100) == line


@pytest.mark.parametrize(
    "plain", ["Pump A (2024)", "ERR_0x80070005", "a < b", "中文 选项", "don't", "50 %", "a/b", "C#"]
)
def test_plain_words_stay_as_they_are(plain: str):
    assert safe_line(plain, 100) == plain
