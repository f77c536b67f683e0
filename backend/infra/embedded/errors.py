"""The one error of the embedded services."""

from collections.abc import Generator
from contextlib import contextmanager


class EmbeddedServiceError(RuntimeError):
    """An embedded service cannot run here. The text is one line, for the operator, and says what to do."""


@contextmanager
def explained(service: str) -> Generator[None]:
    """Turn an `OSError` of the block into an `EmbeddedServiceError` that names the file and the reason."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        place = f" ({error.filename})" if error.filename else ""
        raise EmbeddedServiceError(f"embedded {service} cannot be used: {reason}{place}") from error
