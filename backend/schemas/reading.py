"""What is read of a document, on the wire."""

from uuid import UUID

from backend.schemas.base import StrictSchema


class DocumentPassage(StrictSchema):
    """A chunk as it is cited, and the texts before and after it; null at the ends of the document.

    ``level`` is 1 (large) to 3 (leaf); ``page_number`` is null for formats without pages.
    """

    document_id: UUID
    document_version: int
    chunk_id: UUID
    filename: str
    page_number: int | None
    heading: str | None
    level: int
    text: str
    before: str | None
    after: str | None


class DocumentPage(StrictSchema):
    """The text of one page. ``truncated``: there is more than is told."""

    document_id: UUID
    document_version: int
    filename: str
    page_number: int
    pages: int | None
    text: str
    truncated: bool
