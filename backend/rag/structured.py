"""One decision of a model as a value of a schema, whatever the model returns in its place."""

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import json_repair
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.messages.ai import UsageMetadata, add_usage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.constants import TAG_NOSTREAM
from pydantic import BaseModel, ValidationError

from backend.errors import ProviderError
from backend.log import get_logger
from backend.rag.decisions import DECISION_INPUT, DecisionInput
from backend.text import clean_json

UNREADABLE = "unreadable"
"""The failure of a model that twice gave nothing of the schema."""

NO_RULE = "no_rule"
"""The failure of a model that does not make this decision at all; its default is then meant, nothing went wrong."""

MAX_ANSWER_CHARS = 20_000
LEAST_PASSAGE_TOKENS, MAX_PASSAGE_TOKENS = 300, 5_000
_QUIET: RunnableConfig = {"tags": [TAG_NOSTREAM]}  # what is decided is no text of the answer that is being streamed
_THINK = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL | re.IGNORECASE)
_AGAIN = "\n\nYour answer before this could not be read. Answer with that one JSON object and nothing else."

T = TypeVar("T", bound=BaseModel)
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Decided(Generic[T]):
    """``value``, or why there is none: a code of ``ProviderError``, ``unreadable`` or ``no_rule``."""

    value: T | None = None
    failure: str | None = None
    usage: UsageMetadata | None = None


class DecisionModel:
    """A chat model that is asked for decisions: each within ``timeout_seconds``, the second try included.

    ``passage_tokens`` is what it may be given to read at a time.
    """

    def __init__(self, model: BaseChatModel, timeout_seconds: float, passage_tokens: int = MAX_PASSAGE_TOKENS) -> None:
        self.passage_tokens = max(LEAST_PASSAGE_TOKENS, min(passage_tokens, MAX_PASSAGE_TOKENS))
        self._model = model
        self._timeout_seconds = timeout_seconds
        self._takes_schema = True
        self._by_schema: dict[type[BaseModel], Runnable[LanguageModelInput, Any]] = {}  # making one takes milliseconds

    async def decide(self, schema: type[T], rules: str, given: DecisionInput, data: str) -> Decided[T]:
        """The decision on ``data`` (text, which ``rules`` explain) or on ``given`` (for a model that goes by rules).

        Never raises for a fault of the model: no answer in time, a refusal, an answer that cannot be read even at the
        second try.
        """
        asked = _Asked(schema, rules, given, data)
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._decide(asked)
        except ProviderError as error:
            return asked.failed(error.code)
        except TimeoutError:
            return asked.failed("provider_timeout")
        except NotImplementedError:  # by which the extractive model says that it has no rule
            return Decided(failure=NO_RULE)

    async def _decide(self, asked: "_Asked[T]") -> Decided[T]:
        for messages in (asked.messages(), asked.messages(again=True)):
            message = await self._ask(asked, messages)
            value = read(asked.schema, message)
            if value is not None:
                return Decided(value, usage=asked.usage)
        return asked.failed(UNREADABLE)

    async def _ask(self, asked: "_Asked[T]", messages: list[BaseMessage]) -> AIMessage:
        """One answer. A provider that refuses the schema is asked by the text of the rules alone, from then on too."""
        if self._takes_schema:
            try:
                given: dict[str, Any] = await self._structured(asked.schema).ainvoke(messages, _QUIET)
                return asked.count(given["raw"])
            except ProviderError as error:
                if error.code != "provider_rejected":
                    raise
        message = await self._model.ainvoke(messages, _QUIET)
        self._takes_schema = False
        return asked.count(message)

    def _structured(self, schema: type[BaseModel]) -> Runnable[LanguageModelInput, Any]:
        if schema not in self._by_schema:
            self._by_schema[schema] = self._model.with_structured_output(schema, include_raw=True)  # pyright: ignore[reportUnknownMemberType]  # a bare dict in its signature
        return self._by_schema[schema]


class _Asked(Generic[T]):
    """What one decision is about, and what it has cost so far."""

    def __init__(self, schema: type[T], rules: str, given: DecisionInput, data: str) -> None:
        self.schema = schema
        self.usage: UsageMetadata | None = None
        self._rules = rules
        self._given = given
        self._data = data

    def messages(self, *, again: bool = False) -> list[BaseMessage]:
        # The failed answer is not repeated to the model, and the roles alternate: some servers insist on that.
        human = HumanMessage(
            self._data + _AGAIN if again else self._data, additional_kwargs={DECISION_INPUT: self._given}
        )
        return [SystemMessage(self._rules), human]

    def count(self, message: AIMessage) -> AIMessage:
        if message.usage_metadata is not None:
            self.usage = add_usage(self.usage, message.usage_metadata)
        return message

    def failed(self, failure: str) -> Decided[T]:
        _log.warning("decision_failed", decision=self.schema.__name__, code=failure)
        return Decided(failure=failure, usage=self.usage)


def read(schema: type[T], message: AIMessage) -> T | None:
    """The value in the text of ``message``, or in the arguments of a tool call in its place; ``None`` if there is
    none, or if the answer was cut off."""
    if message.response_metadata.get("finish_reason") == "length":
        return None
    found = parse(schema, str(message.text))
    calls = iter(message.tool_calls)
    while found is None and (call := next(calls, None)) is not None:
        found = _valid(schema, call["args"])
    return found


def parse(schema: type[T], text: str) -> T | None:
    """The value that ``text`` holds: JSON, perhaps fenced, in prose, in a list, or with small faults."""
    loaded = _load(_THINK.sub("", text)[:MAX_ANSWER_CHARS])
    items: list[object] = cast("list[object]", loaded) if isinstance(loaded, list) else [loaded]
    for item in items:
        if isinstance(item, dict) and (value := _valid(schema, cast("dict[str, Any]", item))) is not None:
            return value
    return None


def _load(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if text.count("{") > text.count("}"):
            return None  # cut off: what repair makes of it may be half a sentence
    try:
        return json_repair.loads(text, skip_json_loads=True)
    except (ValueError, RecursionError):
        return None


def _valid(schema: type[T], fields: dict[str, Any]) -> T | None:
    """``fields`` as a value; an optional field that is null or wrong counts as absent."""
    given = {key: value for key, value in clean_json(fields).items() if value is not None}
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        wrong = {fault["loc"][0] for fault in error.errors() if fault["loc"]}
    optional = {name for name, field in schema.model_fields.items() if not field.is_required()}
    if not wrong or not wrong <= optional:
        return None
    return schema.model_validate({key: value for key, value in given.items() if key not in wrong})
