"""Settings of the documents: limits of an upload and of the parser, and where the index lies."""

from pydantic import BaseModel, Field, SecretStr, field_validator

_SERVER = ("http://", "https://")


class KnowledgeConfig(BaseModel):
    """Sizes are in bytes, times in seconds. Without ``index_url`` the index lies in ``DATA_DIR/index``.

    An address there is that of a Milvus server, and ``index_token`` its ``user:password`` or key.
    """

    max_upload_bytes: int = Field(default=52_428_800, ge=1)
    parse_max_pages: int = Field(default=5_000, ge=1)
    parse_max_cells: int = Field(default=2_000_000, ge=1)
    parse_max_inflated_bytes: int = Field(default=524_288_000, ge=1)
    parse_timeout_seconds: float = Field(default=120, gt=0, le=86_400)
    parse_memory_bytes: int = Field(default=1_073_741_824, ge=268_435_456)
    max_files_per_session: int = Field(default=50, ge=1)
    max_bytes_per_user: int = Field(default=524_288_000, ge=1)
    max_batch_files: int = Field(default=500, ge=1, le=1_000)
    max_batch_inflated_bytes: int = Field(default=209_715_200, ge=1)
    max_zip_ratio: int = Field(default=200, ge=1)
    index_url: str | None = None
    index_token: SecretStr | None = None

    @property
    def on_index_server(self) -> bool:
        """Whether the index is a server's."""
        return (self.index_url or "").lower().startswith(_SERVER)

    @field_validator("index_url", mode="before")
    @classmethod
    def _check_index_url(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        value = value.strip()
        if value.lower().startswith(_SERVER) and "@" in value:
            raise ValueError("INDEX_URL must be without a user and password; they are INDEX_TOKEN")
        return value or None

    @field_validator("index_token", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return None if isinstance(value, str) and not value.strip() else value
