"""Tool calls out of streamed fragments, whole or not at all.

Providers number and name fragments in many ways: no index, a new id for each piece, an empty name after the
first piece, all parallel calls at index 0. What can be assembled without a guess is; anything else is a
``provider_protocol`` error, so a half-built call never reaches a tool.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk

from backend.infra.llm.errors import protocol_error
from backend.text import clean_json

MAX_CALLS = 64


@dataclass
class _Call:
    id: str
    name: str = ""
    arguments: str = ""

    @property
    def complete(self) -> bool:
        return bool(self.arguments) and _clean_arguments(self.arguments) is not None


class ToolCallAssembler:
    """Collects the ``tool_calls`` fragments of one answer."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, fragment: object) -> None:
        """Takes one element of ``delta.tool_calls``. Raises ``provider_protocol`` if it belongs to no call."""
        if not isinstance(fragment, dict):
            raise protocol_error()
        fields = cast("dict[str, Any]", fragment)
        inner: object = fields.get("function") or {}
        if not isinstance(inner, dict):
            raise protocol_error()
        function = cast("dict[str, Any]", inner)
        index, call_id, name = fields.get("index"), _text(fields.get("id")), _text(function.get("name"))
        call = self._find(index if isinstance(index, int) else None, call_id, name)
        call.name = call.name or name
        call.arguments += _arguments(function.get("arguments"))

    def chunks(self) -> list[ToolCallChunk]:
        """The finished calls, their ids unique. Raises ``provider_protocol`` if one has no name or no whole JSON."""
        seen: set[str] = set()
        chunks: list[ToolCallChunk] = []
        for index, call in enumerate(self._calls):
            args = _clean_arguments(call.arguments or "{}")
            if args is None or not call.name:
                raise protocol_error()
            # A result is matched to its call by id, so an absent or repeated one is replaced.
            call_id = call.id if call.id and call.id not in seen else f"call_{uuid4().hex}"
            seen.add(call_id)
            chunks.append(tool_call_chunk(name=call.name, args=args, id=call_id, index=index))
        return chunks

    def _find(self, index: int | None, call_id: str, name: str) -> _Call:
        known = self._by_index.get(index) if index is not None else self._with_id(call_id)
        if known is not None:
            if name and known.complete and (index is None or (call_id and call_id != known.id)):
                return self._new(index, call_id)  # parallel calls that share an index or an id
            if name and known.name and name != known.name:
                raise protocol_error()
            return known
        if not name:
            return self._only()
        last = self._calls[-1] if self._calls else None
        if index is None and not call_id and last is not None and last.name == name and not last.complete:
            return last
        return self._new(index, call_id)

    def _with_id(self, call_id: str) -> _Call | None:
        return next((call for call in reversed(self._calls) if call_id and call.id == call_id), None)

    def _only(self) -> _Call:
        """The call that an unnamed fragment with an unknown index or id continues: clear only if there is one."""
        if len(self._calls) != 1:
            raise protocol_error()
        return self._calls[0]

    def _new(self, index: int | None, call_id: str) -> _Call:
        if len(self._calls) >= MAX_CALLS:
            raise protocol_error()
        call = _Call(call_id)
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _arguments(value: object) -> str:
    """A fragment of the arguments' JSON; some servers send the object itself."""
    if isinstance(value, Mapping):
        return json.dumps(value)
    return _text(value)


def _clean_arguments(text: str) -> str | None:
    """The JSON object in ``text`` with clean strings, as JSON again; None if it is no whole one."""
    try:
        # Not orjson: it refuses the lone surrogates and the long integers that models do write.
        value: object = json.loads(text)
        cleaned = clean_json({} if value is None else value)
        return json.dumps(cleaned, ensure_ascii=False, allow_nan=False) if isinstance(cleaned, dict) else None
    except (ValueError, RecursionError):
        return None
