"""All options in one place: the config models of the rooms, read from the environment and ``.env``."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from backend.agents.config import AgentsConfig
from backend.api.config import ApiConfig
from backend.auth.config import AuthConfig
from backend.chat.config import ChatConfig
from backend.infra.config import EmbeddingConfig, ModelConfig, StorageConfig
from backend.knowledge.config import KnowledgeConfig
from backend.rag.config import RagConfig
from backend.sandbox.config import SandboxConfig


class ServerConfig(BaseModel):
    """Where the server listens, and with how many processes."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=64)


class TracingConfig(BaseModel):
    """Where spans go (OTLP over HTTP, the base address of a collector); unset, there are none.

    ``otel_exporter_otlp_headers`` is ``name=value,name=value``, as a collector asks for its key.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    otel_exporter_otlp_endpoint: str | None = Field(default=None, pattern=r"^https?://[^\s@/]+")
    otel_exporter_otlp_headers: SecretStr | None = None
    otel_service_name: str = "citewire"

    @field_validator("otel_exporter_otlp_headers")
    @classmethod
    def _check_headers(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not all("=" in part for part in value.get_secret_value().split(",")):
            raise ValueError("OTEL_EXPORTER_OTLP_HEADERS must be name=value,name=value")
        return value

    def otel_headers(self) -> dict[str, str]:
        """The headers as a mapping."""
        given = self.otel_exporter_otlp_headers
        parts = [] if given is None else given.get_secret_value().split(",")
        return {name.strip(): text.strip() for name, _, text in (part.partition("=") for part in parts)}


class Settings(  # pyright: ignore[reportIncompatibleVariableOverride]  # plain models have a smaller model_config
    StorageConfig,
    ModelConfig,
    EmbeddingConfig,
    RagConfig,
    AgentsConfig,
    ChatConfig,
    KnowledgeConfig,
    SandboxConfig,
    AuthConfig,
    ApiConfig,
    ServerConfig,
    TracingConfig,
    BaseSettings,
):
    """Every option; an environment variable is the upper-case name of its field. Empty values count as unset."""

    model_config = SettingsConfigDict(  # pyright: ignore[reportIncompatibleVariableOverride]  # plain models have less
        env_file=".env", env_ignore_empty=True, extra="ignore", hide_input_in_errors=True
    )

    def secret_values(self) -> list[str]:
        """Every configured secret, so that no log line can show one."""
        values = (getattr(self, name) for name in type(self).model_fields)
        secrets = [value.get_secret_value() for value in values if isinstance(value, SecretStr)]
        return [*secrets, *self.otel_headers().values()]


class SettingsError(ValueError):
    """An option is wrong or missing; the text is one line that names the variable. ``problems`` has all of them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems[0])
        self.problems = problems


def load_settings(env_file: Path | None = Path(".env")) -> Settings:
    """The options of this process. Raises :class:`SettingsError`; the value is never part of its text."""
    try:
        return Settings(_env_file=env_file)  # pyright: ignore[reportCallIssue]  # pydantic-settings' own argument
    except UnicodeDecodeError:
        raise SettingsError([f"{env_file}: not UTF-8 text"]) from None
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise SettingsError([_problem(item["loc"], item["msg"]) for item in found]) from None


def _problem(loc: tuple[int | str, ...], message: str) -> str:
    name = ".".join(str(part) for part in loc).upper()
    text = message.removeprefix("Value error, ")
    return f"{name}: {text.removeprefix(f'{name} ')}" if name else text
