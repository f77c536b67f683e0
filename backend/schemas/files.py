"""Files of a conversation on the wire."""

from datetime import datetime

from backend.schemas.base import StrictSchema
from backend.schemas.chat import UploadedFile


class UploadListResponse(StrictSchema):
    """The files that the user has put into a conversation, by name."""

    files: list[UploadedFile]


class UploadDeleteResponse(StrictSchema):
    """The upload that is gone."""

    filename: str
    message: str


class Artifact(StrictSchema):
    """A file that the assistant handed over. ``path`` is where tools find it, ``url`` where a client does."""

    path: str
    filename: str
    size: int
    mime_type: str
    modified_at: datetime
    url: str


class ArtifactListResponse(StrictSchema):
    """The files that the assistant handed over and that are there, in that order."""

    artifacts: list[Artifact]
