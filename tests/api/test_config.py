"""Options of the HTTP edge."""

import pytest
from pydantic import ValidationError

from backend.api.config import ApiConfig


def test_lists_are_comma_separated() -> None:
    config = ApiConfig.model_validate(
        {"cors_origins": "https://a.example, http://localhost:5173,", "trusted_proxies": "10.0.0.0/8,::1"}
    )
    assert config.cors_origins == ("https://a.example", "http://localhost:5173")
    assert config.trusted_proxies == ("10.0.0.0/8", "::1")
    assert ApiConfig.model_validate({"cors_origins": "", "trusted_proxies": ""}) == ApiConfig()


@pytest.mark.parametrize(
    "value", ["*", "https://a.example/", "https://a.example/x", "null", "a.example", "ftp://a", "https://*"]
)
def test_only_exact_origins(value: str) -> None:
    with pytest.raises(ValidationError, match="CORS_ORIGINS"):
        ApiConfig.model_validate({"cors_origins": value})


@pytest.mark.parametrize("value", ["*", "proxy.local", "10.0.0.1/8", "10.0.0.0/33"])
def test_only_addresses_and_networks(value: str) -> None:
    with pytest.raises(ValidationError, match="TRUSTED_PROXIES"):
        ApiConfig.model_validate({"trusted_proxies": value})


def test_log_levels_in_any_case() -> None:
    assert ApiConfig.model_validate({"log_level": "DEBUG"}).log_level == "debug"
    with pytest.raises(ValidationError):
        ApiConfig.model_validate({"log_level": "loud"})
