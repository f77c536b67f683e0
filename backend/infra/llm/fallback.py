"""A model with a stand-in for the time in which its provider is down.

LangChain's own fallbacks do not serve here: they also begin a second answer after the first one has streamed text.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from itertools import takewhile
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from backend.errors import ProviderError
from backend.infra.llm.extractive import is_question
from backend.log import get_logger

DEGRADED = "degraded"
"""Key in the ``response_metadata`` of what the stand-in said."""

_DOWN = frozenset({"provider_unavailable", "provider_timeout", "provider_rate_limited", "provider_protocol"})
"""Faults of the provider. The others are those of the request (or of its key), and no other model heals them."""

_log = get_logger(__name__)


class FallbackModel(BaseChatModel):
    """``main``, or ``fallback`` when ``main`` fails by a fault of its provider. Async only.

    It stands in only while the turn has shown no text, and then to the end of the turn. ``streaming`` as with
    ``main``.
    """

    main: BaseChatModel
    fallback: BaseChatModel
    streaming: bool

    @property
    def _llm_type(self) -> str:
        return "fallback"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Both models with ``tools`` on offer; ``tool_choice="none"`` forbids a call."""
        choice = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **choice, **kwargs)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        turn = _turn(messages)
        if not any(message.response_metadata.get(DEGRADED) for message in turn):
            shown = any(message.text for message in turn)
            try:
                async with aclosing(_streamed(self.main, messages, stop, run_manager, kwargs)) as chunks:
                    async for chunk in chunks:
                        shown = shown or bool(chunk.text)
                        yield chunk
                return
            except ProviderError as error:
                if shown or error.code not in _DOWN:
                    raise
                _log.warning("fallback_answers", code=error.code)
        async with aclosing(_streamed(self.fallback, messages, stop, run_manager, kwargs)) as chunks:
            async for chunk in chunks:
                if chunk.message.response_metadata:  # the last one
                    chunk.message.response_metadata[DEGRADED] = True
                yield chunk

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError("model calls are async: ainvoke or astream")


def _streamed(
    model: BaseChatModel,
    messages: list[BaseMessage],
    stop: list[str] | None,
    run_manager: AsyncCallbackManagerForLLMRun | None,
    options: dict[str, Any],
) -> AsyncGenerator[ChatGenerationChunk]:
    # The public astream would be a run of its own, and each token would be told twice.
    stream = model._astream(messages, stop, run_manager, **options)  # pyright: ignore[reportPrivateUsage]
    return cast("AsyncGenerator[ChatGenerationChunk]", stream)


def _turn(messages: Sequence[BaseMessage]) -> list[AIMessage]:
    """What models have said since the question."""
    since = takewhile(lambda message: not is_question(message), reversed(messages))
    return [message for message in since if isinstance(message, AIMessage)]
