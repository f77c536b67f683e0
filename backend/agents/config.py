"""Settings of the agent's tools. Environment names are the upper-case field names; times are in seconds."""

from typing import Literal, Self

from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator


class AgentsConfig(BaseModel):
    """Where the weather comes from; an empty value counts as absent.

    ``weather_base_url`` replaces the provider's own address.
    """

    weather_provider: Literal["open-meteo", "amap"] = "open-meteo"
    weather_base_url: str | None = None
    weather_api_key: SecretStr | None = None
    weather_timeout_seconds: float = Field(default=5, gt=0, le=60)

    @field_validator("weather_base_url", "weather_api_key", mode="before")
    @classmethod
    def _blank_is_absent(cls, value: object) -> object:
        return (value.strip() or None) if isinstance(value, str) else value

    @field_validator("weather_base_url")
    @classmethod
    def _check_base_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not value.startswith(("http://", "https://")):
            raise ValueError("WEATHER_BASE_URL must be an http:// or https:// address")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _amap_needs_a_key(self) -> Self:
        if self.weather_provider == "amap" and self.weather_api_key is None:
            raise ValueError("WEATHER_API_KEY is required when WEATHER_PROVIDER is amap")
        return self
