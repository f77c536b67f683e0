"""What one model call may hold: rules, tools, earlier turns, question and tool results, all counted."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from backend.agents.context import AgentContext
from backend.agents.thread_state import IMAGE_TOKENS, MAX_IMAGES_SHOWN
from backend.errors import ProviderError
from backend.rag.prompts import split_passages
from backend.text import rough_tokens

MESSAGE_TOKENS = 8
"""What a message costs besides its text."""
LEAST_ROOM = 1_000
"""Tokens that earlier turns, question and passages need together, or no answer is worth its call."""
_QUESTION_SHARE = 0.75
_HISTORY_SHARE = 0.5
_CUT = " …"

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """``window``: tokens of a prompt and its answer together; ``answer`` of them are kept free."""

    window: int
    answer: int
    count_tokens: CountTokens


class PromptBudget(AgentMiddleware[Any, Any]):
    """Keeps each prompt, with the tokens of the answer on top, within the window.

    The oldest turns go first, whole; then passages from the end of the list, so that a number goes on naming the same
    passage. When the provider, who counts with another tokenizer, says that it is still too long, the call is made
    once more with half of it.
    """

    def __init__(self, limits: PromptLimits, system_prompt: str, tools: Sequence[BaseTool]) -> None:
        """Raises ``ValueError``, naming the option, when the window has no room for a conversation."""
        schemas = [json.dumps(convert_to_openai_tool(tool)) for tool in tools]
        self._count = partial(token_estimate, count_tokens=limits.count_tokens)
        self._limit = limits.window - limits.answer - sum(map(self._count, schemas))
        self._rules = system_prompt
        self._room = self._limit - self._count(system_prompt)
        if self._room < LEAST_ROOM:
            raise ValueError(
                f"PROMPT_MAX_TOKENS: {LEAST_ROOM - self._room} more are needed, or as many less for ANSWER_MAX_TOKENS"
            )

    @property
    def history_tokens(self) -> int:
        """Tokens of question and earlier turns together: the rest is for what is found."""
        return int(self._room * _HISTORY_SHARE)

    async def fits_as_question(self, text: str) -> bool:
        """Whether a question of this length leaves room for what is found."""
        most = int(self._room * _QUESTION_SHARE)
        return most_tokens(text) <= most or await asyncio.to_thread(self._count, text) <= most

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Trims the call, and tells the turn how many passages the model sees."""
        rules = request.system_prompt or ""
        room = self._room
        if rules != self._rules:
            room = self._limit - await asyncio.to_thread(self._count, rules)
        images: Sequence[str] = cast("Any", request.state).get("viewed_images") or ()
        room -= IMAGE_TOKENS * min(len(images), MAX_IMAGES_SHOWN)
        context: AgentContext = cast("Any", request.runtime).context
        seen = context.passages_shown
        messages = await self._fit(request.messages, room)
        context.passages_shown = _more(seen, _passages(messages))
        try:
            return await handler(request.override(messages=messages))
        except ProviderError as error:
            if error.code != "context_too_long":
                raise
            half = await asyncio.to_thread(_cost, messages, self._count) // 2
            shorter = await self._fit(messages, half)
            if shorter == messages:
                raise
            context.passages_shown = _more(seen, _passages(shorter))
            return await handler(request.override(messages=shorter))

    async def _fit(self, messages: list[AnyMessage], room: int) -> list[AnyMessage]:
        if sum(most_tokens(_text(message)) + MESSAGE_TOKENS for message in messages) <= room:
            return messages
        return await asyncio.to_thread(fit, messages, room, self._count)


def _more(seen: int | None, shown: int | None) -> int | None:
    """Of several calls of a turn the one counts that was shown most."""
    return seen if shown is None else max(seen or 0, shown)


def token_estimate(text: str, count_tokens: CountTokens) -> int:
    """The larger of a tokenizer's count and a rule of thumb: models cut Chinese into more pieces than others do."""
    return max(count_tokens(text), rough_tokens(text))


def fit(messages: Sequence[AnyMessage], room: int, count: CountTokens) -> list[AnyMessage]:
    """The conversation within ``room`` tokens; the question and the calls of its turn always stay."""
    start = max((at for at, message in enumerate(messages) if isinstance(message, HumanMessage)), default=0)
    earlier, current = messages[:start], messages[start:]
    left = room - _cost(current, count)
    if left < 0:
        return _cut_results(current, -left, count)
    return [*_newest_turns(earlier, left, count), *current]


def _newest_turns(messages: Sequence[AnyMessage], room: int, count: CountTokens) -> list[AnyMessage]:
    """The last whole turns; a turn begins with its question."""
    starts = [at for at, message in enumerate(messages) if isinstance(message, HumanMessage)]
    kept = len(messages)
    for start in reversed(starts):
        room -= _cost(messages[start:kept], count)
        if room < 0:
            break
        kept = start
    return list(messages[kept:])


def _cut_results(messages: Sequence[AnyMessage], excess: int, count: CountTokens) -> list[AnyMessage]:
    """Tool results cut by ``excess`` tokens, the longest first."""
    cut = list(messages)
    results = [(at, message) for at, message in enumerate(cut) if isinstance(message, ToolMessage)]
    for at, result in sorted(results, key=lambda item: -len(_text(item[1]))):
        if excess <= 0:
            break
        before = count(_text(result))
        shorter = _shorter(result, max(1, before - excess), count)
        excess -= before - count(_text(shorter))
        cut[at] = shorter
    return cut


def _shorter(result: ToolMessage, tokens: int, count: CountTokens) -> ToolMessage:
    """``result`` with ``tokens`` at most: its first passages, or the beginning of its text."""
    found = _artifact(result)
    if not found:
        return result.model_copy(update={"content": cut_text(_text(result), tokens, count)})
    passages = split_passages(_text(result))
    kept, left = 0, tokens
    for passage in passages:
        left -= count(passage) + 1
        if left < 0:
            break
        kept += 1
    texts = passages[:kept] or [cut_text(passages[0], tokens, count)]
    return result.model_copy(update={"content": "\n\n".join(texts), "artifact": found[: len(texts)]})


def cut_text(text: str, tokens: int, count: CountTokens) -> str:
    """The beginning of ``text`` with about ``tokens`` tokens, never more."""
    while text and (cost := count(text + _CUT)) > tokens:
        text = text[: min(len(text) - 1, int(len(text) * tokens / cost))]
    return text + _CUT


def _passages(messages: Sequence[AnyMessage]) -> int | None:
    """How many numbered passages the results of a turn hold; ``None`` when it has none."""
    counts = [len(found) for message in messages if isinstance(message, ToolMessage) and (found := _artifact(message))]
    return counts[0] if counts else None


def _artifact(message: ToolMessage) -> list[Any]:
    artifact: Any = message.artifact
    return cast("list[Any]", artifact) if isinstance(artifact, list) else []


def _cost(messages: Sequence[BaseMessage], count: CountTokens) -> int:
    return sum(count(_text(message)) + MESSAGE_TOKENS for message in messages)


def _text(message: BaseMessage) -> str:
    """What a message sends: its text, and the calls it makes."""
    calls = json.dumps(message.tool_calls, ensure_ascii=False) if isinstance(message, AIMessage) else ""
    return f"{message.text}{calls if len(calls) > 2 else ''}"


def most_tokens(text: str) -> int:
    """As many tokens as ``text`` can have for any tokenizer, one for each byte: known without counting them."""
    return len(text.encode(errors="replace"))
