"""Settings of accounts and rate limits. Environment names are the upper-case field names."""

from pydantic import BaseModel, Field, SecretStr, field_validator


class AuthConfig(BaseModel):
    """Secrets have no default; an empty value counts as absent. A rate of 0 turns that limit off."""

    jwt_secret_key: SecretStr | None = None
    jwt_expire_minutes: int = Field(default=1440, ge=1, le=525_600)
    admin_invite_code: SecretStr | None = None
    login_rate_per_minute: int = Field(default=10, ge=0, le=100_000)
    register_rate_per_minute: int = Field(default=10, ge=0, le=100_000)
    chat_rate_per_minute: int = Field(default=30, ge=0, le=100_000)

    @field_validator("jwt_secret_key", "admin_invite_code", mode="before")
    @classmethod
    def _blank_is_absent(cls, value: object) -> object:
        return None if isinstance(value, str) and not value.strip() else value
