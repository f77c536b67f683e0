"""What a model call holds at most: whole turns, the best passages, the question in any case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from backend.agents.middlewares.budget import (
    MESSAGE_TOKENS,
    PromptBudget,
    PromptLimits,
    cut_text,
    fit,
    token_estimate,
)

QUESTION = HumanMessage("now?")
CALL = AIMessage("", tool_calls=[{"name": "search_knowledge_base", "args": {"query": "now?"}, "id": "c"}])


def chars(text: str) -> int:
    return len(text)


def turn(number: int, length: int = 100) -> list[AnyMessage]:
    return [HumanMessage(f"q{number} ".ljust(length, "x")), AIMessage(f"a{number} ".ljust(length, "y"))]


def found(count: int, length: int = 100) -> ToolMessage:
    texts = [f"[{number}] a.pdf (Page 1): ".ljust(length, "z") for number in range(1, count + 1)]
    artifact = [{"index": number} for number in range(1, count + 1)]
    return ToolMessage("\n\n".join(texts), artifact=artifact, tool_call_id="c", name="search_knowledge_base")


def cost(messages: list[AnyMessage]) -> int:
    calls = sum(80 for message in messages if isinstance(message, AIMessage) and message.tool_calls)
    return sum(len(message.text) + MESSAGE_TOKENS for message in messages) + calls


def numbers(messages: list[AnyMessage]) -> list[str]:
    return [line[1 : line.index("]")] for line in messages[-1].text.split("\n\n")]


def test_what_fits_is_left_as_it_is():
    messages = [*turn(1), QUESTION, CALL, found(3)]
    assert fit(messages, 10_000, chars) == messages


def test_f05_the_oldest_turns_go_first_and_whole():
    messages = [*turn(1), *turn(2), *turn(3), QUESTION, CALL, found(3)]
    assert fit(messages, cost(messages) - 1, chars) == messages[2:]
    assert fit(messages, cost(messages[2:]) - 1, chars) == messages[4:]
    assert fit(messages, cost(messages[4:]) - 1, chars) == messages[6:]


def test_f05_passages_go_from_the_end_and_keep_their_numbers():
    messages = [*turn(1), QUESTION, CALL, found(5)]
    fitted = fit(messages, cost(messages[2:]) - 150, chars)
    assert fitted[:2] == [QUESTION, CALL]
    assert numbers(fitted) == ["1", "2", "3"]
    assert [item["index"] for item in fitted[-1].artifact] == [1, 2, 3]
    assert messages[-1].text.startswith(fitted[-1].text)


def test_f05_of_one_passage_that_is_too_long_its_beginning_is_left():
    messages = [QUESTION, CALL, found(2, length=5_000)]
    fitted = fit(messages, cost(messages) - 6_000, chars)
    assert numbers(fitted) == ["1"]
    assert cost(fitted) <= cost(messages) - 6_000
    assert fitted[-1].artifact == [{"index": 1}]


def test_f05_another_result_is_cut_where_it_is_longest():
    weather = ToolMessage("w" * 3_000, tool_call_id="d", name="get_current_weather")
    messages = [QUESTION, CALL, found(2), weather]
    fitted = fit(messages, cost(messages) - 1_000, chars)
    assert fitted[2] == messages[2]
    assert len(fitted[3].text) <= 2_000


def test_the_question_always_stays():
    assert fit([*turn(1), QUESTION], 1, chars) == [QUESTION]


def test_f05_chinese_counts_by_the_character_whatever_the_tokenizer_says():
    assert token_estimate("水泵的压力" * 100, lambda text: len(text) // 4) == 500
    assert token_estimate("pump " * 100, lambda text: 130) == 130


@given(st.text(max_size=200), st.integers(1, 100))
def test_a_cut_text_is_within_its_tokens(text: str, tokens: int):
    assert len(cut_text(text, tokens, chars)) <= max(tokens, 2)


@given(st.integers(0, 6), st.integers(0, 400), st.integers(1, 8), st.integers(10, 400), st.integers(0, 4_000))
def test_f05_the_room_holds(turns: int, turn_length: int, passages: int, length: int, room: int):
    history = [message for number in range(turns) for message in turn(number, turn_length)]
    fitted = fit([*history, QUESTION, CALL, found(passages, length)], room, chars)
    least = cost([QUESTION, CALL]) + MESSAGE_TOKENS + 2
    assert cost(fitted) <= max(room, least)
    kinds = [message.type for message in fitted[:-3]]
    assert kinds == ["human", "ai"] * (len(kinds) // 2)


def test_f05_a_window_without_room_is_named_at_the_start():
    with pytest.raises(ValueError, match=r"^PROMPT_MAX_TOKENS: 500 more are needed"):
        PromptBudget(PromptLimits(2_000, 1_496, chars), "four", [])


async def test_f05_a_question_leaves_room_for_what_is_found():
    budget = PromptBudget(PromptLimits(3_000, 1_000, chars), "", [])
    assert budget.history_tokens == 1_000
    assert await budget.fits_as_question("水" * 1_500)
    assert not await budget.fits_as_question("水" * 1_501)
