"""Settings of the HTTP edge. Environment names are the upper-case field names; lists are comma separated."""

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import BaseModel, Field, field_validator
from pydantic_settings import NoDecode

_ORIGIN = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?")
"""As browsers send it: no path, no user."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ApiConfig(BaseModel):
    """``cors_origins`` are exact origins; ``trusted_proxies`` addresses or networks whose X-Forwarded-For is believed.

    Browsers send no credentials of their own here (tokens travel in a header that the page sets), so CORS never allows
    credentials, and ``*`` is refused all the same: an install names the frontends that may use it.
    """

    max_body_bytes: int = Field(default=1_048_576, ge=1024, le=1_073_741_824)
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ()
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("cors_origins", "trusted_proxies", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value or ()

    @field_validator("log_level", mode="before")
    @classmethod
    def _fold(cls, value: object) -> object:
        return value.strip().lower() if isinstance(value, str) else value

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            if _ORIGIN.fullmatch(origin) is None:
                raise ValueError("CORS_ORIGINS holds something that is no origin (scheme://host[:port], * is refused)")
        return value

    @field_validator("trusted_proxies")
    @classmethod
    def _check_proxies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in value:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise ValueError("TRUSTED_PROXIES holds something that is neither an address nor a network") from None
        return value
