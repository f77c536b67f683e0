"""Settings of the infrastructure: model provider, storage, embeddings.

Environment names are the upper-case field names.
"""

from pathlib import Path
from typing import Literal, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from backend.infra.database.engine import async_url


class ModelConfig(BaseModel):
    """The chat model provider; without ``llm_base_url`` the extractive model answers.

    ``llm_fast_model`` (plans, rewrites, titles) falls back to ``llm_model``, ``llm_grade_model`` to the fast one.
    An empty value counts as absent. Times are in seconds.
    """

    model_config = ConfigDict(hide_input_in_errors=True)  # an error must not quote the key

    llm_base_url: str | None = None
    llm_api_key: SecretStr | None = None
    llm_model: str | None = None
    llm_fast_model: str | None = None
    llm_grade_model: str | None = None
    llm_fallback: Literal["none", "extractive"] = "none"
    llm_connect_seconds: float = Field(default=5, gt=0, le=3600)
    llm_first_byte_seconds: float = Field(default=60, gt=0, le=3600)
    llm_idle_seconds: float = Field(default=30, gt=0, le=3600)
    llm_total_seconds: float = Field(default=300, gt=0, le=86_400)
    llm_max_calls_per_turn: int = Field(default=12, ge=1, le=1000)
    answer_max_tokens: int = Field(default=2000, ge=1, le=1_000_000)

    @field_validator("llm_base_url", "llm_api_key", "llm_model", "llm_fast_model", "llm_grade_model", mode="before")
    @classmethod
    def _blank_is_absent(cls, value: object) -> object:
        return (value.strip() or None) if isinstance(value, str) else value

    @field_validator("llm_base_url")
    @classmethod
    def _check_base_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            url = httpx.URL(value)
        except httpx.InvalidURL:
            raise ValueError("LLM_BASE_URL is not a URL") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("LLM_BASE_URL must be an http:// or https:// address")
        if url.userinfo or url.query or url.fragment:
            # It is logged and shown by tools; a secret in it would leak.
            raise ValueError("LLM_BASE_URL must be a plain address; the key belongs into LLM_API_KEY")
        return value.rstrip("/")

    @field_validator("llm_api_key")
    @classmethod
    def _check_api_key(cls, value: SecretStr | None) -> SecretStr | None:
        # Such a key cannot be sent as a header, and the HTTP library would quote it in its error.
        if value is not None and not all("!" <= char <= "~" for char in value.get_secret_value()):
            raise ValueError("LLM_API_KEY holds spaces or characters that no HTTP header can carry")
        return value

    @model_validator(mode="after")
    def _model_is_named(self) -> Self:
        if self.llm_base_url is not None and self.llm_model is None:
            raise ValueError("LLM_MODEL is required when LLM_BASE_URL is set")
        return self


class StorageConfig(BaseModel):
    """Where the data lies. Without ``database_url`` or ``redis_url`` the embedded servers run in ``data_dir``."""

    data_dir: Path = Path(".citewire")
    database_url: SecretStr | None = None
    redis_url: SecretStr | None = None
    database_pool_size: int = Field(default=20, ge=1, le=1000)

    @field_validator("database_url")
    @classmethod
    def _is_postgres(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            async_url(value.get_secret_value())
        return value

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("must be a redis://, rediss:// or unix:// address")
        return value

    @field_validator("database_url", "redis_url", mode="before")
    @classmethod
    def _blank_url_is_absent(cls, value: object) -> object:
        return (value.strip() or None) if isinstance(value, str) else value


class EmbeddingConfig(BaseModel):
    """The embedding provider (an OpenAI-compatible ``/embeddings``); without ``embedding_base_url`` the built-in model.

    ``embedding_dimensions`` is the length of a vector; the built-in model has 384.
    """

    embedding_base_url: str | None = None
    embedding_api_key: SecretStr | None = None
    embedding_model: str | None = None
    embedding_dimensions: int = Field(default=384, ge=1, le=16_384)

    @field_validator("embedding_base_url", "embedding_api_key", "embedding_model", mode="before")
    @classmethod
    def _blank_embedding_is_absent(cls, value: object) -> object:
        return (value.strip() or None) if isinstance(value, str) else value

    @field_validator("embedding_base_url")
    @classmethod
    def _check_embedding_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            url = httpx.URL(value)
        except httpx.InvalidURL:
            raise ValueError("EMBEDDING_BASE_URL is not a URL") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("EMBEDDING_BASE_URL must be an http:// or https:// address")
        if url.userinfo or url.query or url.fragment:
            raise ValueError("EMBEDDING_BASE_URL must be a plain address; the key belongs into EMBEDDING_API_KEY")
        return value.rstrip("/")

    @field_validator("embedding_api_key")
    @classmethod
    def _check_embedding_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not all("!" <= char <= "~" for char in value.get_secret_value()):
            raise ValueError("EMBEDDING_API_KEY holds spaces or characters that no HTTP header can carry")
        return value

    @model_validator(mode="after")
    def _embedding_is_whole(self) -> Self:
        if self.embedding_base_url is not None and self.embedding_model is None:
            raise ValueError("EMBEDDING_MODEL is required when EMBEDDING_BASE_URL is set")
        if self.embedding_base_url is None and self.embedding_dimensions != 384:
            raise ValueError("EMBEDDING_DIMENSIONS must be 384 for the built-in model (EMBEDDING_BASE_URL is unset)")
        return self
