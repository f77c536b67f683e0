"""A provider that is down is not asked for a while: callers get their answer at once, and it is left alone."""

import time

from backend.log import get_logger

FAILURES = 5
OPEN_SECONDS = 5.0
_log = get_logger(__name__)


class Breaker:
    """Opens after ``failures`` failures in a row; one success closes it.

    Open, it refuses every call for ``open_seconds``; then the next call tries while the others are still refused.
    """

    def __init__(self, *, failures: int = FAILURES, open_seconds: float = OPEN_SECONDS) -> None:
        self._limit = failures
        self._open_seconds = open_seconds
        self._failures = 0
        self._tried_again_at: float | None = None

    def refused_for(self) -> float:
        """Seconds for which calls are refused; 0: the caller may call, and says how it went."""
        if self._tried_again_at is None:
            return 0.0
        left = self._tried_again_at - time.monotonic()
        if left > 0:
            return left
        self._tried_again_at = time.monotonic() + self._open_seconds
        return 0.0

    def failed(self) -> None:
        """The server could not be reached, or said nothing."""
        self._failures += 1
        if self._failures < self._limit:
            return
        if self._tried_again_at is None:
            _log.warning("provider_circuit_opened", pause_seconds=self._open_seconds)
        self._tried_again_at = time.monotonic() + self._open_seconds

    def succeeded(self) -> None:
        """The server answered, whatever it said."""
        if self._tried_again_at is not None:
            _log.info("provider_circuit_closed")
        self._failures, self._tried_again_at = 0, None
