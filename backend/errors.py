"""The errors a client can see: an HTTP status and a stable code, rendered once in ``api/errors.py``.

The text of an exception never reaches a client; what a person reads comes from ``catalogue.py`` by ``code``.
"""

from typing import Any, ClassVar


class AppError(Exception):
    """Base of every error with a stable ``code``.

    ``fields`` are added to the error body (for example ``run_id`` of ``run_active``); they must be safe to show.
    ``retry_after`` is in seconds and becomes the ``Retry-After`` header.
    """

    status: ClassVar[int] = 500
    code: str = "internal_error"
    retryable: bool = False

    def __init__(self, *, retry_after: float | None = None, **fields: Any) -> None:
        super().__init__(self.code)
        self.retry_after = retry_after
        self.fields = fields


class ValidationFailed(AppError):
    """The input is not of the documented form. ``fields`` may hold ``errors: [{loc, msg}]``."""

    status = 422
    code = "validation_error"


class IdempotencyKeyMismatch(AppError):
    """Header ``Idempotency-Key`` and body ``client_message_id`` differ."""

    status = 422
    code = "idempotency_key_mismatch"


class MessageTooLarge(AppError):
    """The chat message is longer than ``MAX_MESSAGE_CHARS``."""

    status = 413
    code = "message_too_large"


class TooLarge(AppError):
    """A body, a file or what a file unpacks to is above its limit."""

    status = 413
    code = "too_large"


class TooManyFiles(AppError):
    """More files in one request, or in its archives, than ``MAX_BATCH_FILES``."""

    status = 413
    code = "too_many_files"


class TypeMismatch(AppError):
    """The file type is not supported, or the content is not what the name says."""

    status = 415
    code = "type_mismatch"


class DocumentError(AppError):
    """A file that cannot be used; ``code`` says why."""

    status = 422
    CODES: ClassVar[frozenset[str]] = frozenset(
        {"empty_document", "encrypted_document", "no_extractable_text", "encoding_unknown", "parse_failed"}
    )

    def __init__(self, code: str, **fields: Any) -> None:
        if code not in self.CODES:
            raise ValueError(f"unknown document error code {code!r}")
        self.code = code
        super().__init__(**fields)


class Unauthorized(AppError):
    """No token, a bad one, or wrong credentials; which of them is not told."""

    status = 401
    code = "unauthorized"


class Forbidden(AppError):
    """Visible, but not yours to change."""

    status = 403
    code = "forbidden"


class NotFound(AppError):
    """Absent or someone else's: both look the same."""

    status = 404
    code = "not_found"


class NameTaken(AppError):
    """There is one of that name: an account, or a collection of the user's."""

    status = 409
    code = "name_taken"


class Cancelled(AppError):
    """The upload was ended on request."""

    status = 409
    code = "cancelled"


class IdempotencyConflict(AppError):
    """The key was used for another body."""

    status = 409
    code = "idempotency_conflict"


class RunActive(AppError):
    """The session is busy; ``fields`` hold the ``run_id`` of the active run."""

    status = 409
    code = "run_active"


class StaleHitl(AppError):
    """The ``hitl_id`` is not the pending question."""

    status = 409
    code = "stale_hitl"


class RateLimited(AppError):
    """A token bucket is empty."""

    status = 429
    code = "rate_limited"
    retryable = True


class TooManyRuns(AppError):
    """The user or the worker has the most active runs it may have."""

    status = 429
    code = "too_many_runs"
    retryable = True


class StorageUnavailable(AppError):
    """Postgres cannot be reached or did not answer in time."""

    status = 503
    code = "storage_unavailable"
    retryable = True


class Draining(AppError):
    """The worker is shutting down and takes no more turns."""

    status = 503
    code = "draining"
    retryable = True


class ProviderError(AppError):
    """A model call failed. ``code`` is one of ``CODES``; the raw answer of the provider stays in the (redacted) log."""

    status = 502
    CODES: ClassVar[frozenset[str]] = frozenset(
        {
            "provider_unavailable",
            "provider_rate_limited",
            "provider_rejected",
            "provider_protocol",
            "provider_timeout",
            "context_too_long",
            "content_filtered",
        }
    )

    def __init__(self, code: str, *, retryable: bool, retry_after: float | None = None) -> None:
        if code not in self.CODES:
            raise ValueError(f"unknown provider error code {code!r}")
        self.code = code
        self.retryable = retryable
        super().__init__(retry_after=retry_after)


def _http_codes() -> dict[str, int]:
    codes = {AppError.code: AppError.status, "method_not_allowed": 405}
    for kind in AppError.__subclasses__():
        own: frozenset[str] = getattr(kind, "CODES", frozenset({kind.code}))
        codes.update(dict.fromkeys(own, kind.status))
    return codes


HTTP_CODES = _http_codes()
"""Every code that an answer can carry, with its status."""

EVENT_CODES = ProviderError.CODES | {StorageUnavailable.code, AppError.code, "server_shutdown"}
"""Every code that an ``error`` event, and the stored error of a run, can carry."""
