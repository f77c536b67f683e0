"""Collections of documents on the wire."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import Field, field_validator

from backend.schemas.base import RequestSchema, StrictSchema
from backend.text import is_blank

MAX_NAME_CHARS = 200
MAX_COLLECTION_DOCUMENTS = 1_000
"""Documents of one collection: the index is asked with the list of them, which costs some 10 ms at this number."""

Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]


class CollectionNamed(RequestSchema):
    """The name of a collection; each user has a name once."""

    name: Name

    @field_validator("name")
    @classmethod
    def _trimmed(cls, value: str) -> str:
        if is_blank(value):
            raise ValueError("name is blank")
        return value.strip()


class CollectionAdd(RequestSchema):
    """Documents to put into a collection: shared ones and one's own."""

    document_ids: Annotated[list[UUID], Field(min_length=1, max_length=MAX_COLLECTION_DOCUMENTS)]


class CollectionInfo(StrictSchema):
    """A collection of the caller's. ``document_count`` counts those that the caller may see."""

    collection_id: UUID
    name: str
    document_count: int
    created_at: datetime


class CollectionList(StrictSchema):
    """The caller's collections, by name."""

    collections: list[CollectionInfo]


class CollectionDeleteResponse(StrictSchema):
    """The collection is gone; its documents are where they were."""

    collection_id: UUID
    message: str
