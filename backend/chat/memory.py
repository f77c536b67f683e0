"""The part of a conversation that a model is shown: the last whole turns that fit."""

from collections.abc import Callable, Sequence

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from backend.chat.citations import without_numbers
from backend.schemas.chat import MessageInfo

MESSAGE_TOKENS = 8
"""What a message costs besides its text."""


def prompt_messages(
    history: Sequence[MessageInfo], question: str, *, budget: int, count_tokens: Callable[[str], int]
) -> list[BaseMessage]:
    """Earlier turns, oldest first, and the question last, within ``budget`` tokens.

    Only whole turns are taken, a question with its answer, so roles always alternate; a turn without an answer text is
    left out. Old citation numbers are removed: they name the chunks of another run. The question is always there.
    """
    left = budget - count_tokens(question) - MESSAGE_TOKENS
    taken: list[BaseMessage] = []
    for human, answer in reversed(_turns(history)):
        answer = without_numbers(answer)
        left -= count_tokens(human) + count_tokens(answer) + 2 * MESSAGE_TOKENS
        if left < 0:
            break
        taken = [HumanMessage(content=human), AIMessage(content=answer), *taken]
    return [*taken, HumanMessage(content=question)]


def _turns(history: Sequence[MessageInfo]) -> list[tuple[str, str]]:
    """Pairs of question and answer, ascending."""
    turns: list[tuple[str, str]] = []
    question: str | None = None
    for message in history:
        if message.type == "human":
            question = message.content
        elif message.type == "ai" and question is not None:
            if message.content.strip():
                turns.append((question, message.content))
            question = None
    return turns
