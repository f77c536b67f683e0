"""A chat model without weights: it looks a question up and answers with what the documents say.

It speaks the same interface as any provider (tool calls, streaming, structured output), is deterministic and needs no
network. What it decides comes as functions from the rooms above.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.outputs.chat_generation import merge_chat_generation_chunks
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from backend.text import both_ends

MODEL_NAME = "extractive"
MAX_QUERY_CHARS = 8_000
QUESTION = "question"
"""Key in the ``additional_kwargs`` of a human message to which a list of files was added: what the user said. No
provider is sent it."""
IMAGES = "images"
"""The same in a human message that nobody said: it was put there to show images."""
_PIECE = re.compile(r"\s*\S{1,12}|\s+$")
"""What one token of the stream holds: a word, or a few characters of a text without spaces."""

Passages = Sequence[Mapping[str, Any]]
AnswerRule = Callable[[str, Passages | None], str]
UploadsRule = Callable[[str, Passages], str | None]
SchemaRule = Callable[[list[BaseMessage]], BaseModel]


class ExtractiveChatModel(BaseChatModel):
    """Calls ``knowledge_tool`` with the user's question, then answers by ``answer_rule`` from the tool's artifact.

    ``answer_rule(question, passages)`` gets the artifact (a list of mappings), ``[]`` when the tool found nothing,
    ``None`` when the tool is not offered. ``schema_rules`` give the structured outputs.

    A question with files is looked up in these first, by ``uploads_tool``; ``uploads_rule(question, passages)`` answers
    from them, or gives ``None`` when they do not.
    """

    answer_rule: AnswerRule
    uploads_rule: UploadsRule | None = None
    knowledge_tool: str = "search_knowledge_base"
    uploads_tool: str = "search_uploads"
    schema_rules: dict[type[BaseModel], SchemaRule] = {}
    streaming: bool = True

    @property
    def _llm_type(self) -> str:
        return MODEL_NAME

    @property
    def model_name(self) -> str:
        return MODEL_NAME

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": MODEL_NAME}

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """The model with ``tools`` on offer; ``tool_choice="none"`` forbids a call."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], tool_choice=tool_choice, **kwargs)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, Any]:
        """The rule for ``schema`` as a model. Raises ``NotImplementedError`` without one: the caller has a default."""
        rule = self.schema_rules.get(cast("type[BaseModel]", schema)) if isinstance(schema, type) else None
        if rule is None:
            raise NotImplementedError("the extractive model has no rule for this schema")

        async def decide(value: LanguageModelInput) -> BaseModel | dict[str, Any]:
            made = await asyncio.to_thread(rule, self._convert_input(value).to_messages())
            if not include_raw:
                return made
            return {"raw": AIMessage(made.model_dump_json()), "parsed": made, "parsing_error": None}

        return RunnableLambda(decide)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        # Word analysis of long passages takes milliseconds: not on the loop.
        chunks = await asyncio.to_thread(self._chunks, messages, kwargs)
        for chunk in chunks:
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
            await asyncio.sleep(0)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        chunks = [chunk async for chunk in self._astream(messages, stop, run_manager, **kwargs)]
        return _whole(chunks)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _whole(self._chunks(messages, kwargs))

    def _chunks(self, messages: Sequence[BaseMessage], options: Mapping[str, Any]) -> list[ChatGenerationChunk]:
        question = _question(messages)
        last = messages[-1] if messages else None
        searched_files = isinstance(last, ToolMessage) and last.name == self.uploads_tool
        if searched_files and self.uploads_rule and (text := self.uploads_rule(question, _passages(messages) or [])):
            return list(_text_chunks(text))
        if isinstance(last, HumanMessage) and QUESTION in _extras(last) and self._may_call(self.uploads_tool, options):
            return [_tool_call(self.uploads_tool, question, f"call_{len(messages)}")]
        if (searched_files or isinstance(last, HumanMessage)) and self._may_call(self.knowledge_tool, options):
            return [_tool_call(self.knowledge_tool, question, f"call_{len(messages)}")]
        return list(_text_chunks(self.answer_rule(question, [] if searched_files else _passages(messages))))

    def _may_call(self, tool: str, options: Mapping[str, Any]) -> bool:
        tools: list[dict[str, Any]] = options.get("tools") or []
        names = {offered.get("function", {}).get("name") for offered in tools}
        return tool in names and options.get("tool_choice") != "none"


def _extras(message: BaseMessage) -> dict[str, Any]:
    return message.additional_kwargs  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # a bare dict


def is_question(message: BaseMessage) -> bool:
    """Whether the user said it."""
    return isinstance(message, HumanMessage) and IMAGES not in _extras(message)


def _question(messages: Sequence[BaseMessage]) -> str:
    """What the user said last; what was looked up instead, where that is another question: the one that the user's
    answer to a question back completes."""
    humans = (message for message in reversed(messages) if is_question(message))
    said = next((str(_extras(message).get(QUESTION) or message.text) for message in humans), "")
    looked_up = _looked_up(messages)
    return said if looked_up is None or said.startswith(looked_up) else looked_up


def _looked_up(messages: Sequence[BaseMessage]) -> str | None:
    """The query of the tool call whose results the conversation ends with."""
    before = next((message for message in reversed(messages) if not isinstance(message, ToolMessage)), None)
    calls = before.tool_calls if isinstance(before, AIMessage) else []
    return next((query for call in calls if isinstance(query := call["args"].get("query"), str) and query), None)


def _passages(messages: Sequence[BaseMessage]) -> Passages | None:
    """The passages of the tool results that the conversation ends with; ``None`` when it ends with none."""
    results = list(takewhile(lambda message: isinstance(message, ToolMessage), reversed(messages)))
    artifacts = [cast("ToolMessage", result).artifact for result in results]
    found = [cast("Passages", artifact) for artifact in artifacts if isinstance(artifact, list)]
    return found[0] if found else ([] if results else None)


def _tool_call(name: str, question: str, call_id: str) -> ChatGenerationChunk:
    args = json.dumps({"query": both_ends(question, MAX_QUERY_CHARS)})
    call = tool_call_chunk(name=name, args=args, id=call_id, index=0)
    return _last_chunk("tool_calls", AIMessageChunk(content="", tool_call_chunks=[call]))


def _text_chunks(text: str) -> Iterator[ChatGenerationChunk]:
    for piece in _PIECE.findall(text):
        yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
    yield _last_chunk("stop", AIMessageChunk(content=""))


def _last_chunk(reason: str, message: AIMessageChunk) -> ChatGenerationChunk:
    message.usage_metadata = UsageMetadata(input_tokens=0, output_tokens=0, total_tokens=0)
    message.response_metadata = {"finish_reason": reason, "model_name": MODEL_NAME}
    message.chunk_position = "last"
    return ChatGenerationChunk(message=message)


def _whole(chunks: list[ChatGenerationChunk]) -> ChatResult:
    merged = merge_chat_generation_chunks(chunks)
    if merged is None:
        raise RuntimeError("an answer has at least its last chunk")
    return ChatResult(generations=[ChatGeneration(message=merged.message)])
