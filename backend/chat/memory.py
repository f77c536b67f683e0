"""The part of a conversation that a model is shown: the last whole turns that fit."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from backend.agents.middlewares.budget import MESSAGE_TOKENS, most_tokens
from backend.chat.citations import without_numbers


class Said(Protocol):
    """A message of a history."""

    @property
    def type(self) -> str: ...
    @property
    def content(self) -> str: ...


M = TypeVar("M", bound=Said)


def most_tokens_of(texts: Sequence[str]) -> int:
    """As many tokens as messages with these texts can have together, known without counting them."""
    return sum(most_tokens(text) + MESSAGE_TOKENS for text in texts)


async def prompt_for(
    history: Sequence[Said], question: str, *, most: int, budget: int, count_tokens: Callable[[str], int]
) -> list[BaseMessage]:
    """:func:`prompt_messages`. ``most`` is :func:`most_tokens_of` all of it: where that fits nothing is counted, else
    the counting is done off the loop."""
    if most <= budget:
        return prompt_messages(history, question, budget=budget, count_tokens=most_tokens)
    return await asyncio.to_thread(prompt_messages, history, question, budget=budget, count_tokens=count_tokens)


def prompt_messages(
    history: Sequence[Said], question: str, *, budget: int, count_tokens: Callable[[str], int]
) -> list[BaseMessage]:
    """Earlier turns, oldest first, and the question last, within ``budget`` tokens.

    Only whole turns are taken, a question with its answer, so roles always alternate; a turn without an answer text is
    left out. Old citation numbers are removed: they name the chunks of another run. The question is always there.
    """
    left = budget - count_tokens(question) - MESSAGE_TOKENS
    shown = [
        message
        for human, answer in shown_turns(history, budget=left, count_tokens=count_tokens)
        for message in (HumanMessage(content=human.content), AIMessage(content=without_numbers(answer.content)))
    ]
    return [*shown, HumanMessage(content=question)]


def shown_turns(history: Sequence[M], *, budget: int, count_tokens: Callable[[str], int]) -> list[tuple[M, M]]:
    """The last turns of ``history`` that fit into ``budget`` tokens, question and answer each, oldest first."""
    taken: list[tuple[M, M]] = []
    for human, answer in reversed(_turns(history)):
        budget -= count_tokens(human.content) + count_tokens(without_numbers(answer.content)) + 2 * MESSAGE_TOKENS
        if budget < 0:
            break
        taken.append((human, answer))
    return taken[::-1]


def _turns(history: Sequence[M]) -> list[tuple[M, M]]:
    """Pairs of question and answer, ascending; without those whose answer would be an empty message."""
    turns: list[tuple[M, M]] = []
    question: M | None = None
    for message in history:
        if message.type == "human":
            question = message
        elif message.type == "ai" and question is not None:
            if without_numbers(message.content).strip():
                turns.append((question, message))
            question = None
    return turns
