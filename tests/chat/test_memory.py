"""What a model is shown of the conversation: whole turns, newest kept, within the budget."""

from datetime import UTC, datetime
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage

from backend.chat.memory import MESSAGE_TOKENS, prompt_messages
from backend.schemas.chat import MessageInfo, MessageStatus


def said(kind: Literal["human", "ai", "system"], content: str, status: MessageStatus = "completed") -> MessageInfo:
    return MessageInfo(type=kind, content=content, timestamp=datetime.now(UTC), id="i", status=status)


def turn(number: int, words: int = 1) -> list[MessageInfo]:
    return [said("human", f"q{number} " * words), said("ai", f"a{number} " * words)]


def words(text: str) -> int:
    return len(text.split())


def prompt(history: list[MessageInfo], budget: int = 1000, question: str = "now?") -> list[BaseMessage]:
    return prompt_messages(history, question, budget=budget, count_tokens=words)


def contents(messages: list[BaseMessage]) -> list[str]:
    return [f"{message.type}:{str(message.content).strip()}" for message in messages]


def test_history_comes_first_and_the_question_last():
    assert contents(prompt(turn(1) + turn(2))) == ["human:q1", "ai:a1", "human:q2", "ai:a2", "human:now?"]


def test_the_oldest_turns_go_first_and_only_whole():
    cost = 2 + 2 * MESSAGE_TOKENS
    question = 1 + MESSAGE_TOKENS
    history = turn(1) + turn(2) + turn(3)
    assert contents(prompt(history, question + 2 * cost)) == ["human:q2", "ai:a2", "human:q3", "ai:a3", "human:now?"]
    assert contents(prompt(history, question + 2 * cost - 1)) == ["human:q3", "ai:a3", "human:now?"]


def test_a_turn_that_does_not_fit_ends_the_history():
    """An older one that would fit is not shown without it: the conversation would have a hole."""
    assert contents(prompt(turn(1) + turn(2, words=500) + turn(3), 100)) == ["human:q3", "ai:a3", "human:now?"]


def test_the_question_is_always_there():
    assert contents(prompt(turn(1), 0, "long " * 50)) == ["human:" + ("long " * 50).strip()]


def test_a_turn_without_an_answer_is_left_out():
    history = [*turn(1), said("human", "lost"), said("ai", "  ", "failed"), said("human", "lost too"), *turn(2)]
    assert contents(prompt(history)) == ["human:q1", "ai:a1", "human:q2", "ai:a2", "human:now?"]


def test_an_interrupted_answer_with_text_is_shown():
    history = [said("human", "q"), said("ai", "half an", "interrupted")]
    assert contents(prompt(history)) == ["human:q", "ai:half an", "human:now?"]


def test_old_citation_numbers_are_removed():
    history = [said("human", "see [1]"), said("ai", "24 months [1][12].")]
    assert contents(prompt(history)) == ["human:see [1]", "ai:24 months .", "human:now?"]


def test_an_answer_of_nothing_but_numbers_is_no_empty_message():
    history = [*turn(1), said("human", "which?"), said("ai", " [1][2] "), *turn(2)]
    assert contents(prompt(history)) == ["human:q1", "ai:a1", "human:q2", "ai:a2", "human:now?"]


KINDS = st.sampled_from(["human", "ai", "system"])


TEXTS = st.text(max_size=30) | st.sampled_from(["", " ", "[1]", "[1] [12]\n"])


@given(st.lists(st.tuples(KINDS, TEXTS), max_size=20), st.integers(0, 300))
def test_roles_alternate_and_the_budget_holds(history: list[tuple[str, str]], budget: int):
    messages = prompt([said(kind, text) for kind, text in history], budget)  # type: ignore[arg-type]
    assert [message.type for message in messages] == ["human", "ai"] * (len(messages) // 2) + ["human"]
    assert all(str(message.content).strip() for message in messages if message.type == "ai")
    cost = sum(words(str(message.content)) + MESSAGE_TOKENS for message in messages)
    assert len(messages) == 1 or cost <= budget
