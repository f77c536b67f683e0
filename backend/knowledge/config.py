"""Settings of the documents: limits of an upload and of the parser, and where the index lies."""

from pydantic import BaseModel, Field, field_validator


class KnowledgeConfig(BaseModel):
    """Sizes are in bytes, times in seconds. Without ``index_url`` the index lies in ``DATA_DIR/index``."""

    max_upload_bytes: int = Field(default=52_428_800, ge=1)
    parse_max_pages: int = Field(default=5_000, ge=1)
    parse_max_cells: int = Field(default=2_000_000, ge=1)
    parse_max_inflated_bytes: int = Field(default=524_288_000, ge=1)
    parse_timeout_seconds: float = Field(default=120, gt=0, le=86_400)
    parse_memory_bytes: int = Field(default=1_073_741_824, ge=268_435_456)
    max_files_per_session: int = Field(default=50, ge=1)
    max_bytes_per_user: int = Field(default=524_288_000, ge=1)
    index_url: str | None = None

    @field_validator("index_url", mode="before")
    @classmethod
    def _check_index_url(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        value = value.strip()
        if value.lower().startswith(("http://", "https://")):
            raise ValueError("INDEX_URL must be a directory or an s3:// address; index servers are not supported yet")
        return value or None
