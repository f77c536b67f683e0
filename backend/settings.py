"""All options in one place: the config models of the rooms, read from the environment and ``.env``."""

from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from backend.chat.config import ChatConfig
from backend.infra.config import EmbeddingConfig, ModelConfig, StorageConfig


class ServerConfig(BaseSettings):
    """Where the server listens, and with how many processes."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=64)


class Settings(
    ChatConfig,
    StorageConfig,
    ModelConfig,
    EmbeddingConfig,
    ServerConfig,
):
    """Every option; an environment variable is the upper-case name of its field. Empty values count as unset."""

    model_config = SettingsConfigDict(env_file=".env", env_ignore_empty=True, extra="ignore", hide_input_in_errors=True)


class SettingsError(ValueError):
    """An option is wrong or missing; the text is one line that names the variable."""


def load_settings(env_file: Path | None = Path(".env")) -> Settings:
    """The options of this process. Raises :class:`SettingsError`; the value is never part of its text."""
    try:
        return Settings(_env_file=env_file)  # pyright: ignore[reportCallIssue]  # pydantic-settings' own argument
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        name = ".".join(str(part) for part in first["loc"]).upper()
        text = first["msg"].removeprefix("Value error, ")
        raise SettingsError(f"{name}: {text}" if name else text) from None
