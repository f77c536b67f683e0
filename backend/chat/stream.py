"""From what the agent yields to the text of an answer. Pure: no clock, no queue, no database."""

from collections.abc import Callable, Collection
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata

from backend.catalogue import Language, say
from backend.chat.answer_filter import AnswerFilter
from backend.chat.link_filter import LinkFilter
from backend.schemas.chat import FinishReason, Flag, Usage
from backend.text import clean_text

STEP_BREAK = "\n\n"
"""Stands between the texts of two model calls; it is streamed, so that the stored text is what was streamed."""

_FINISH_REASONS: dict[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "clarification": "clarification",
    "limit": "limit",
}


class AnswerStream:
    """Collects one answer: feed it the agent's chunks, send the texts it gives, :meth:`flush` at the end.

    ``valid_citation(n)`` tells whether the model was shown a chunk with that number in this run; ``allowed_hosts`` are
    those that an answer may link to.
    """

    def __init__(self, valid_citation: Callable[[int], bool], allowed_hosts: Collection[str] = ()) -> None:
        self._filter = AnswerFilter(valid_citation)
        self._links = LinkFilter(allowed_hosts)
        self._pieces: list[str] = []
        self._call_id: str | None = None
        self._break_due = False
        self._usage: list[UsageMetadata] = []
        self._degraded = False
        self._limit_reached = False
        self.finish_reason: FinishReason | None = None

    def feed(self, mode: str, chunk: Any) -> str:
        """The text that ``chunk`` adds to the answer, perhaps empty. The shapes are those of ``BoundAgent.astream``."""
        if mode == "updates":
            self._note_updates(chunk)
            return ""
        message = chunk[0]
        if not isinstance(message, AIMessage):
            return ""
        # What is held back belongs before the break: neither a citation nor a thought goes on in the next step.
        rest = self.flush() if message.id != self._call_id else ""
        self._note_call(message)
        return rest + self._send(self._links.feed(self._filter.feed(clean_text(str(message.text)))))

    def flush(self) -> str:
        """What was held back."""
        return self._send(self._links.feed(self._filter.flush()) + self._links.flush())

    def closing(self, language: Language) -> str:
        """The rest of a whole answer: what was held back; a fixed text where the provider withheld everything."""
        rest = self.flush()
        if self.finish_reason == "content_filter" and not self.text.strip():
            return rest + self._send(say("content_filtered", language))
        return rest

    @property
    def text(self) -> str:
        """All text sent so far: the concatenation of what was streamed."""
        return "".join(self._pieces)

    @property
    def cited(self) -> set[int]:
        """The citation numbers that were sent."""
        return self._filter.cited

    def count(self, usage: UsageMetadata | None) -> None:
        """Adds tokens of model calls that are not in the stream: those within tools."""
        if usage is not None:
            self._usage.append(usage)

    @property
    def usage(self) -> Usage | None:
        """Tokens of all model calls together; ``None`` when the provider told none."""
        if not self._usage:
            return None
        return Usage(
            input_tokens=sum(item["input_tokens"] for item in self._usage),
            output_tokens=sum(item["output_tokens"] for item in self._usage),
            total_tokens=sum(item["total_tokens"] for item in self._usage),
        )

    @property
    def flags(self) -> list[Flag]:
        """What a client should know of the answer."""
        flags: list[Flag] = []
        if self._degraded:
            flags.append("degraded")
        if self._limit_reached:
            flags.append("limit_reached")
        if self.finish_reason == "length":
            flags.append("truncated")
        if not self.text.strip():
            flags.append("empty_answer")
        return flags

    def _send(self, text: str) -> str:
        if not text:
            return ""
        if self._break_due and self._pieces:
            text = STEP_BREAK + text
        self._break_due = False
        self._pieces.append(text)
        return text

    def _note_call(self, message: AIMessage) -> None:
        if message.id != self._call_id:
            self._break_due = self._call_id is not None
            self._call_id = message.id
        if message.usage_metadata is not None and (message.usage_metadata["total_tokens"] or not self._usage):
            self._usage.append(message.usage_metadata)
        self._degraded = self._degraded or bool(message.response_metadata.get("degraded"))
        reason = message.response_metadata.get("finish_reason")
        if reason:
            self.finish_reason = _FINISH_REASONS.get(str(reason), "other")
        if not isinstance(message, AIMessageChunk) and self.finish_reason == "limit":
            self._limit_reached = True

    def _note_updates(self, updates: dict[str, Any]) -> None:
        for update in updates.values():
            if isinstance(update, dict) and update.get("limit_reached"):  # pyright: ignore[reportUnknownMemberType]
                self._limit_reached = True
