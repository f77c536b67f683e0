"""The meaning of a stream of chat completion chunks, whatever shape its provider gives them."""

from collections.abc import Mapping
from typing import Any, cast

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGenerationChunk

from backend.infra.llm.errors import protocol_error
from backend.infra.llm.tool_calls import ToolCallAssembler

# The reasons with which a model ends a tool call on purpose; after any other the call may be cut and is dropped.
_CALLING = frozenset({"tool_calls", "tool_call", "tool_use", "function_call", "stop", "end_turn", "eos"})


class Answer:
    """Collects the chunks of one answer: text goes out at once, everything else with the end.

    ``visible`` is true once text went out; from then on the call must not be repeated.
    """

    def __init__(self) -> None:
        self.visible = False
        self.finish_reason: str | None = None
        self._calls = ToolCallAssembler()
        self._answered = False
        self._usage: UsageMetadata | None = None
        self._identity: dict[str, Any] = {}

    def add(self, chunk: Mapping[str, Any]) -> str:
        """Takes one chunk (or a whole plain answer), returns its text. Raises ``provider_protocol``."""
        self._usage = _usage(chunk.get("usage")) or self._usage
        for key, name in (("model", "model_name"), ("system_fingerprint", "system_fingerprint")):
            if isinstance(value := chunk.get(key), str) and value:
                self._identity[name] = value
        choices: object = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return ""
        choice = cast("list[object]", choices)[0]
        if not isinstance(choice, dict):
            raise protocol_error()
        self._answered = True
        return self._choice(cast("dict[str, Any]", choice))

    def end(self) -> ChatGenerationChunk:
        """The last chunk: tool calls, finish reason and usage.

        Raises ``provider_protocol`` for a broken call, and if there was no choice at all (not a model's answer).

        With ``length``, ``content_filter`` or an unknown reason tool calls are dropped: the message keeps its text
        and the reason, and no tool runs.
        """
        if not self._answered:
            raise protocol_error()
        reason = self.finish_reason
        calls = self._calls.chunks() if reason is None or reason in _CALLING else []
        if reason == "tool_calls" and not calls and not self.visible:
            raise protocol_error()
        message = AIMessageChunk(
            content="",
            tool_call_chunks=calls,
            usage_metadata=self._usage,
            response_metadata={"model_provider": "openai"},
            chunk_position="last",
        )
        return ChatGenerationChunk(message=message, generation_info={"finish_reason": reason, **self._identity})

    def _choice(self, choice: dict[str, Any]) -> str:
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self.finish_reason = reason.lower()
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, dict):
            return ""
        fields = cast("dict[str, Any]", delta)
        for fragment in fields.get("tool_calls") or ():
            self._calls.add(fragment)
        text = _content(fields.get("content")) or _content(fields.get("refusal"))
        self.visible = self.visible or bool(text)
        return text


def _content(value: object) -> str:
    """Text of ``content``: a string, or a list of parts of which the text ones count."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return ""
    parts = [cast("dict[str, Any]", part) for part in cast("list[object]", value) if isinstance(part, dict)]
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _usage(value: object) -> UsageMetadata | None:
    """Token counts; the last report counts, for some providers send a running one with each chunk."""
    if not isinstance(value, dict):
        return None
    counts = cast("dict[str, Any]", value)
    given, made = _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))
    if not given and not made:
        return None
    return UsageMetadata(
        input_tokens=given,
        output_tokens=made,
        total_tokens=_count(counts.get("total_tokens")) or given + made,
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 < value < 2**31 else 0
