"""What a provider's refusal means: status, error object and headers become a ``ProviderError``.

Bodies of providers can echo the key or the prompt; nothing of them is in the exception.
"""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from backend.errors import ProviderError

_CONTEXT = re.compile(
    r"context_length|context[ _](?:window|size|length)|maximum context|prompt is too long|input tokens exceed"
    r"|reduce the length|string_above_max_length",
    re.I,
)
_FILTER = re.compile(
    r"content_filter|content_policy|content management policy|responsibleai|data_inspection_failed", re.I
)
_IMAGES = re.compile(
    r"image[\w ]* (?:is|are) not (?:supported|allowed)"
    r"|(?:does not|doesn't|cannot) (?:support|accept|handle|process) image"
    r"|not a multimodal|no mmproj|image_url.{0,40}(?:not supported|unsupported|unknown|unexpected)",
    re.I,
)
"""Said with whatever status: llama.cpp answers 500."""
_RATE = re.compile(r"rate_?limit|too_?many_?requests|insufficient_quota|quota_exceeded|resource_exhausted", re.I)
_OVERLOADED = re.compile(r"overloaded|unavailable|server_error|internal_error|timeout", re.I)
_REJECTED = re.compile(
    r"invalid_|authentication|permission|unauthorized|forbidden|not_?found|unsupported|billing", re.I
)


class TransientError(ProviderError):
    """The provider answered nothing (no connection, 429, 5xx): the same call may be tried again."""


def retry_after_seconds(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait by ``retry-after-ms`` or ``Retry-After`` (number or HTTP date); None if absent or absurd."""
    if (ms := _number(headers.get("retry-after-ms"))) is not None:
        return ms / 1000
    value = headers.get("retry-after")
    if (seconds := _number(value)) is not None:
        return seconds
    try:
        date = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return max(0.0, (date.replace(tzinfo=date.tzinfo or UTC) - now).total_seconds())


def status_error(status: int, body: object, retry_after: float | None) -> ProviderError:
    """The error for an HTTP answer that is not 200. ``body`` is its JSON if it had any, else None."""
    return _classify(status, _error_object(body), retry_after)


def event_error(value: object) -> ProviderError:
    """The error for an error object that came inside a stream with status 200."""
    error = _error_object(value)
    number = next((n for n in (_status(error.get(key)) for key in ("code", "status", "status_code")) if n), None)
    return _classify(number, error, _number(error.get("retry_after")))


def protocol_error(*, retryable: bool = True) -> ProviderError:
    """The provider's answer is not what the chat completions protocol allows."""
    return ProviderError("provider_protocol", retryable=retryable)


def is_error(value: Mapping[str, Any]) -> bool:
    """True for the shapes in which providers send an error instead of a chunk."""
    return bool(value.get("error")) or "error" in (value.get("object"), value.get("type"))


def error_text(body: object) -> str:
    """Message, type and code of an error body, for the log only."""
    error = _error_object(body)
    return " ".join(str(error[key]) for key in ("code", "type", "message") if error.get(key))


def _error_object(body: object) -> dict[str, Any]:
    if isinstance(body, list) and body:
        body = cast("list[object]", body)[0]
    if not isinstance(body, dict):
        return {"message": body} if isinstance(body, str) else {}
    fields = cast("dict[str, Any]", body)
    inner = fields.get("error") or fields
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else {"message": str(inner)}


def _classify(status: int | None, error: Mapping[str, Any], retry_after: float | None) -> ProviderError:
    kind = f"{error.get('code') or ''} {error.get('type') or ''}"
    text = f"{kind} {error.get('message') or ''}"
    if status == 429 or _RATE.search(kind):
        if "insufficient_quota" in kind:  # waiting does not help: the account is empty
            return ProviderError("provider_rate_limited", retryable=False)
        return TransientError("provider_rate_limited", retryable=True, retry_after=retry_after)
    if status not in (401, 403, 404):
        if status == 413 or _CONTEXT.search(text):
            return ProviderError("context_too_long", retryable=False)
        if _FILTER.search(text):
            return ProviderError("content_filtered", retryable=False)
    if _IMAGES.search(text):
        return ProviderError("provider_rejected", retryable=False)
    if status == 408:
        return ProviderError("provider_timeout", retryable=True)
    named = bool(_REJECTED.search(kind)) and not _OVERLOADED.search(kind)
    if status < 500 if status is not None else named:
        return ProviderError("provider_rejected", retryable=False)
    return TransientError("provider_unavailable", retryable=True, retry_after=retry_after)


def _status(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and 400 <= number < 600 else None


def _number(value: object) -> float | None:
    try:
        number = float(cast("str", value))
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number >= 0 else None
