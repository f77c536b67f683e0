"""What FakeLLM can answer: builders for replies, each a list of bytes, pauses and ends."""

import asyncio
import enum
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any


class Action(enum.Enum):
    """How a reply can end or stall: RST, an orderly close without more, or silence until the client leaves."""

    RESET = enum.auto()
    CLOSE = enum.auto()
    HANG = enum.auto()


Step = bytes | float | Action | asyncio.Event


@dataclass
class Request:
    """One request as it came. ``time`` is monotonic; ``sent`` counts the writes made for it."""

    method: str
    path: str
    headers: dict[str, str]
    payload: bytes
    body: Any
    time: float
    closed_by_client: bool = False
    sent: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body["messages"]

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))


@dataclass(frozen=True)
class Reply:
    """``steps`` makes what is played for a request: bytes are sent as they are, numbers are seconds to wait."""

    steps: Callable[[Request], list[Step]]


def text(
    content: str,
    *,
    tokens: int | Sequence[str] | None = None,
    delay: float = 0.0,
    finish: str | None = "stop",
    usage: Mapping[str, int] | None = None,
) -> Reply:
    """A whole answer. ``tokens``: the pieces, or their number (words are repeated or cut); by default the words."""
    pieces = split(content, tokens)

    def steps(request: Request) -> list[Step]:
        message = {"role": "assistant", "content": "".join(pieces)}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": p} for p in pieces)]
        return _answer(request, message, deltas, finish, usage or _usage(len(pieces)), delay)

    return Reply(steps)


def tool_call(
    name: str, args: Mapping[str, Any] | str, *, id: str = "call_1", content: str = "", delay: float = 0.0
) -> Reply:
    """A call of one tool, its arguments in three fragments; ``content`` is written before it."""
    arguments = args if isinstance(args, str) else json.dumps(args, ensure_ascii=False)

    def steps(request: Request) -> list[Step]:
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        message = {"role": "assistant", "content": content or None, "tool_calls": [call]}
        third = len(arguments) // 3 + 1
        parts = [arguments[at : at + third] for at in range(0, len(arguments), third)]
        opening = {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None}]
        deltas += [{"content": piece} for piece in split(content, None)]
        deltas += [{"tool_calls": [opening]}]
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in parts]
        return _answer(request, message, deltas, "tool_calls", _usage(len(parts)), delay)

    return Reply(steps)


def tool_calls(*calls: tuple[str, Mapping[str, Any]]) -> Reply:
    """Several calls in one step, each ``(name, arguments)``."""

    def steps(request: Request) -> list[Step]:
        made = [
            {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
            for at, (name, args) in enumerate(calls, len(request.messages))
        ]
        message = {"role": "assistant", "content": None, "tool_calls": made}
        deltas = [{"tool_calls": [{"index": at, **call}]} for at, call in enumerate(made)]
        return _answer(request, message, deltas, "tool_calls", _usage(len(made)), 0.0)

    return Reply(steps)


def status(code: int, body: object = None, headers: Mapping[str, str] | None = None) -> Reply:
    """An answer with that status: ``body`` as JSON, text or bytes, None for an empty one."""
    if body is None or isinstance(body, bytes):
        content, kind = body or b"", "application/octet-stream"
    elif isinstance(body, str):
        content, kind = body.encode(), "text/html" if body.lstrip().startswith("<") else "text/plain"
    else:
        content, kind = json.dumps(body).encode(), "application/json"
    head = _head(code, {"content-type": kind, "content-length": str(len(content)), **(headers or {})})
    return Reply(lambda _: [head + content])


def json_reply(body: object) -> Reply:
    """Status 200 with a JSON body."""
    return status(200, body)


def raw(
    *pieces: bytes | float | asyncio.Event, content_type: str = "text/event-stream", end: Action | None = None
) -> Reply:
    """A 200 stream whose body is exactly ``pieces`` (numbers are pauses, events waited for), ended in order or by
    ``end``."""
    framed = [_chunked(piece) if isinstance(piece, bytes) else piece for piece in pieces]
    return Reply(lambda _: [_stream_head(content_type), *framed, end or b"0\r\n\r\n"])


def wire(*pieces: Step) -> Reply:
    """Exactly these bytes on the connection, status line included, then close."""
    return Reply(lambda _: [*pieces, Action.CLOSE])


def chunks(*bodies: Any, done: bool = True, end: Action | None = None) -> Reply:
    """A stream of these objects as ``data:`` events (bytes are sent as they are), then ``[DONE]``."""
    events = [body if isinstance(body, bytes) else event(body) for body in bodies]
    return raw(*events, *([b"data: [DONE]\n\n"] if done else []), end=end)


def reset_after(n: int, content: str = "one two three four five six seven eight nine ten ") -> Reply:
    """``n`` tokens of ``content``, then RST; 0: RST instead of any answer."""
    return _broken(n, content, Action.RESET)


def close_after(n: int, content: str = "one two three four five six seven eight nine ten ") -> Reply:
    """``n`` tokens, then the body ends in order, without finish reason and ``[DONE]``; 0: close without an answer."""
    return _broken(n, content, None)


def hang_after(n: int, content: str = "one two three four five six seven eight nine ten ") -> Reply:
    """``n`` tokens, then silence until the client leaves; 0: no answer at all."""
    return _broken(n, content, Action.HANG)


def wait(seconds: float, reply: Reply) -> Reply:
    """``reply`` after a pause."""
    return Reply(lambda request: [seconds, *reply.steps(request)])


def event(body: Any) -> bytes:
    """One ``data:`` event."""
    return b"data: " + json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n\n"


def delta(fields: Any = None, *, finish: str | None = None, model: str = "fake", **more: Any) -> dict[str, Any]:
    """A chat completion chunk with one choice."""
    choice = {"index": 0, "delta": {} if fields is None else fields, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": model, "choices": [choice], **more}


def split(content: str, tokens: int | Sequence[str] | None) -> list[str]:
    """Pieces whose concatenation is ``content``, or ``tokens`` words made of it."""
    if tokens is not None and not isinstance(tokens, int):
        return list(tokens)
    words = re.findall(r"\S+\s*|\s+", content)
    if tokens is None or not words:
        return words
    spaced = [word if word[-1:].isspace() else f"{word} " for word in words]
    return [spaced[at % len(spaced)] for at in range(tokens)]


def _broken(n: int, content: str, end: Action | None) -> Reply:
    if n == 0:
        return Reply(lambda _: [end or Action.CLOSE])
    pieces = [event(delta({"content": word})) for word in split(content, n)]
    return raw(event(delta({"role": "assistant", "content": ""})), *pieces, end=end)


def _answer(
    request: Request,
    message: dict[str, Any],
    deltas: list[dict[str, Any]],
    finish: str | None,
    usage: Mapping[str, int],
    delay: float,
) -> list[Step]:
    model = request.body.get("model", "fake")
    if not request.streamed:
        choice = {"index": 0, "message": message, "finish_reason": finish}
        body = {"id": "chatcmpl-1", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage}
        return [delay, *json_reply(body).steps(request)] if delay else json_reply(body).steps(request)
    bodies = [delta(fields, model=model) for fields in deltas] + [delta({}, finish=finish, model=model)]
    if (request.body.get("stream_options") or {}).get("include_usage"):
        bodies.append({**delta(model=model), "choices": [], "usage": usage})
    steps: list[Step] = [_stream_head("text/event-stream")]
    for body in bodies:
        steps += [delay, _chunked(event(body))] if delay else [_chunked(event(body))]
    return [*steps, _chunked(b"data: [DONE]\n\n"), b"0\r\n\r\n"]


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 11, "completion_tokens": tokens, "total_tokens": 11 + tokens}


def _stream_head(content_type: str) -> bytes:
    return _head(200, {"content-type": content_type, "transfer-encoding": "chunked"})


def _head(code: int, headers: Mapping[str, str]) -> bytes:
    phrase = HTTPStatus(code).phrase if code in HTTPStatus._value2member_map_ else "Unknown"
    lines = [f"HTTP/1.1 {code} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _chunked(piece: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(piece), piece)
