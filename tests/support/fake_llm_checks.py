"""What a strict provider refuses, and the vectors of FakeLLM's embeddings."""

import base64
import hashlib
import json
import math
import re
import struct
from collections.abc import Iterator
from typing import Any

from tests.support.fake_llm_replies import Request

_ROLES = {"system", "developer", "user", "assistant", "tool"}


def violations_of(request: Request) -> list[str]:
    """Why a provider would answer 400; empty if the request is well formed."""
    body = request.body
    if not isinstance(body, dict):
        return ["the body is not a JSON object"]
    problems: list[str] = []
    if not body.get("model"):
        problems.append("model is missing")
    if "stream_options" in body and not body.get("stream"):
        problems.append("stream_options without stream")
    problems += {f"{bad} in a string" for string in _strings(body) if (bad := _bad_character(string))}
    if request.path.endswith("/chat/completions"):
        messages = body.get("messages")
        problems += _messages(messages) if isinstance(messages, list) and messages else ["messages are missing"]
    return problems


def embedding(body: dict[str, Any]) -> dict[str, Any]:
    """An ``/embeddings`` answer: deterministic unit vectors, near each other when texts share words."""
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    vectors = [_vector(text, body.get("dimensions") or 64) for text in texts]
    data = [
        {"object": "embedding", "index": at, "embedding": _encoded(vector, body.get("encoding_format"))}
        for at, vector in enumerate(vectors)
    ]
    words = sum(len(text.split()) for text in texts)
    usage = {"prompt_tokens": words, "total_tokens": words}
    return {"object": "list", "model": body["model"], "data": data, "usage": usage}


def tokens_asked(body: dict[str, Any]) -> int:
    """What a tokenizer would make of a chat request, its answer included: a token for each wide character, and one for
    four of the others."""
    text = json.dumps([body["messages"], body.get("tools")], ensure_ascii=False)
    wide = sum(1 for char in text if char >= "\u2e80")
    return wide + (len(text) - wide) // 4 + (body.get("max_tokens") or 0)


def images_of(messages: list[dict[str, Any]]) -> int:
    """How many images the messages of a chat request hold."""
    parts = [part for message in messages if isinstance(message.get("content"), list) for part in message["content"]]
    return sum(1 for part in parts if part.get("type") == "image_url")


def context_length_exceeded(window: int, asked: int) -> dict[str, Any]:
    """The refusal of OpenAI and those who answer alike."""
    message = f"This model's maximum context length is {window} tokens. However, you requested {asked} tokens."
    return {"error": {"message": message, "type": "invalid_request_error", "code": "context_length_exceeded"}}


def _messages(messages: list[Any]) -> list[str]:
    problems: list[str] = []
    waiting: set[str] = set()
    for at, message in enumerate(messages):
        role = message.get("role")
        if role not in _ROLES:
            problems.append(f"message {at} has the role {role!r}")
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                problems.append(f"message {at}: a tool message without a call")
            waiting.discard(message.get("tool_call_id"))
            continue
        if waiting:
            problems.append(f"message {at}: tool calls without a result: {sorted(waiting)}")
        waiting = set()
        if role == "assistant":
            problems += _assistant(at, message)
            waiting = {call.get("id") or "" for call in message.get("tool_calls") or []}
    if waiting:
        problems.append(f"tool calls without a result: {sorted(waiting)}")
    return problems


def _assistant(at: int, message: dict[str, Any]) -> list[str]:
    calls = message.get("tool_calls") or []
    problems: list[str] = []
    if not calls and not message.get("content"):
        problems.append(f"message {at}: an assistant message without content and tool calls")
    ids = [call.get("id") for call in calls]
    if len(set(ids)) != len(ids) or not all(ids):
        problems.append(f"message {at}: tool call ids are empty or repeated")
    for call in calls:
        function = call.get("function") or {}
        if not function.get("name") or not _is_object(function.get("arguments")):
            problems.append(f"message {at}: a tool call without a name or with arguments that are no JSON object")
    return problems


def _is_object(arguments: Any) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (TypeError, ValueError):
        return False


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _bad_character(string: str) -> str | None:
    # Arguments of tool calls are JSON in a string, where an escape hides the character.
    if "\x00" in string or "\\u0000" in string:
        return "NUL"
    return "a lone surrogate" if re.search("[\ud800-\udfff]", string) else None


def _vector(text: str, dimensions: int) -> list[float]:
    vector = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()) or [text]:
        digest = hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
        for at in range(0, 8, 2):
            vector[int.from_bytes(digest[at : at + 2]) % dimensions] += 1.0 if digest[at] % 2 else -1.0
    norm = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / norm for value in vector]


def _encoded(vector: list[float], kind: str | None) -> list[float] | str:
    if kind != "base64":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
