"""Chat models of an OpenAI-compatible provider.

LangChain's ``ChatOpenAI`` writes the request (messages, tools, structured output); the call itself, its deadlines,
its retries and the reading of the answer are ours (``endpoint.py``, ``answer.py``).
"""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.outputs.chat_generation import merge_chat_generation_chunks
from langchain_core.utils.function_calling import convert_to_openai_function
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, PrivateAttr, SecretStr

from backend.errors import ProviderError
from backend.infra.config import ModelConfig
from backend.infra.llm.answer import Answer
from backend.infra.llm.endpoint import Clock, Endpoint
from backend.infra.llm.errors import TransientError, protocol_error
from backend.tracing import stage

MAX_RETRIES = 2
_BACKOFF_SECONDS = 0.5
_AFTER_FINISH_SECONDS = 5.0  # for the usage chunk and [DONE], once the answer is whole
_STEPS_TO_READER = 4
"""Turns of the event loop that a token takes through the graph and the queue of the turn to a subscriber."""
_UNUSED: Any = object()  # stands where the SDK's clients would be, which are never called


class OpenAIModel(ChatOpenAI):
    """``ChatOpenAI`` with our own call. Async only; every failure is a ``ProviderError``."""

    _config: ModelConfig = PrivateAttr()
    _endpoint: Endpoint = PrivateAttr()

    def attach(self, config: ModelConfig, endpoint: Endpoint) -> None:
        """Names the provider that is called; done once by :func:`openai_model`."""
        self._config = config
        self._endpoint = endpoint

    async def aclose(self) -> None:
        """Closes the pooled connections, those of models made with the same client too. May be called twice."""
        await self._endpoint.aclose()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        payload = self._get_request_payload(messages, stop=stop, **kwargs)
        schema = _plain_schema(payload)
        text: list[str] = []
        # Not current: this generator may be closed in another context.
        with stage("model", current=False):
            async with aclosing(self._call(payload)) as chunks:
                async for chunk in chunks:
                    text.append(chunk.text)
                    if schema and chunk.generation_info:
                        _add_parsed(chunk, "".join(text))
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
                    if len(text) == 1:
                        await _let_it_pass()

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        """Also streamed from the provider, for the same deadlines and checks, but no token is handed on."""
        chunks = [chunk async for chunk in self._astream(messages, stop, None, **kwargs)]
        whole = merge_chat_generation_chunks(chunks)
        if whole is None:
            raise protocol_error()
        part = whole.message
        message = AIMessage(**part.model_dump(exclude={"type", "tool_call_chunks", "chunk_position"}))
        return ChatResult(generations=[ChatGeneration(message=message, generation_info=whole.generation_info)])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError("model calls are async: ainvoke or astream")

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        raise NotImplementedError("model calls are async: ainvoke or astream")

    def _get_request_payload(
        self, input_: LanguageModelInput, *, stop: list[str] | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        payload: dict[str, Any] = super()._get_request_payload(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # bare dict
            input_, stop=stop, **kwargs
        )
        payload.pop("stream_usage", None)
        payload["stream"] = True
        if self.stream_usage:
            payload["stream_options"] = {"include_usage": True}
        if "max_completion_tokens" in payload and not _is_openai(self._config.llm_base_url):
            # The newer name is OpenAI's alone; others ignore it, and the answer would have no limit.
            payload["max_tokens"] = payload.pop("max_completion_tokens")
        return payload

    async def _call(self, payload: dict[str, Any]) -> AsyncGenerator[ChatGenerationChunk]:
        """Text chunks as they come and one last chunk with the rest.

        The only retry layer: at most ``MAX_RETRIES`` times, only while no text went out, only after an error that
        means that nothing was answered, and only if the wait fits into the call's total time.
        """
        clock = Clock(self._config)
        for attempt in range(MAX_RETRIES + 1):
            answer = Answer()
            try:
                async with aclosing(self._attempt(payload, answer, clock)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                return
            except TransientError as error:
                pause = _pause(error, attempt)
                if answer.visible or attempt == MAX_RETRIES or pause >= clock.left():
                    raise
            await asyncio.sleep(pause)

    async def _attempt(
        self, payload: dict[str, Any], answer: Answer, clock: Clock
    ) -> AsyncGenerator[ChatGenerationChunk]:
        try:
            async with aclosing(self._endpoint.events(payload, clock)) as events:
                async for event in events:
                    if text := answer.add(event):
                        yield ChatGenerationChunk(message=AIMessageChunk(content=text))
                    if answer.finish_reason is not None:
                        clock.hurry(_AFTER_FINISH_SECONDS)
        except ProviderError:
            if answer.finish_reason is None:
                raise
            # The answer is whole; how the connection ends after it does not matter.
        yield answer.end()


async def _let_it_pass() -> None:
    """Let the first token reach its reader before those that came in the same packet are worked on."""
    for _ in range(_STEPS_TO_READER):
        await asyncio.sleep(0)


def openai_model(
    config: ModelConfig, *, model: str, streaming: bool = True, endpoint: Endpoint | None = None
) -> OpenAIModel:
    """The chat model named ``model`` at ``config.llm_base_url``.

    ``streaming`` decides whether tokens reach callbacks. ``endpoint`` is shared by several models; without it the model
    makes its own. ``aclose`` of the model closes either.
    """
    made = OpenAIModel(
        model=model,
        api_key=SecretStr("unused"),  # the key is with the endpoint; without one here the environment would be read
        base_url=config.llm_base_url,
        max_tokens=config.answer_max_tokens,  # pyright: ignore[reportCallIssue]  # an alias of max_tokens
        streaming=streaming,
        stream_usage=True,
        max_retries=0,
        use_responses_api=False,
        client=_UNUSED,
        async_client=_UNUSED,
    )
    made.attach(config, endpoint or Endpoint(config))
    return made


def _pause(error: TransientError, attempt: int) -> float:
    """Seconds until the next try: what the provider asks for, else growing and spread out."""
    if error.retry_after is not None:
        return error.retry_after
    return _BACKOFF_SECONDS * 2**attempt * random.uniform(0.5, 1.0)


def _is_openai(base_url: str | None) -> bool:
    host = urlsplit(base_url or "").hostname or ""
    return host.endswith((".openai.com", ".openai.azure.com"))


def _plain_schema(payload: dict[str, Any]) -> bool:
    """Writes a pydantic class in ``response_format`` as JSON schema; true if there was one."""
    schema = payload.get("response_format")
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return False
    function = convert_to_openai_function(schema)
    named = {"name": function["name"], "schema": function.get("parameters", {})}
    payload["response_format"] = {"type": "json_schema", "json_schema": named}
    return True


def _add_parsed(chunk: ChatGenerationChunk, text: str) -> None:
    """Puts the JSON object of a structured answer where LangChain's parser looks for it."""
    try:
        parsed: object = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(parsed, dict):
        chunk.message.additional_kwargs["parsed"] = parsed
