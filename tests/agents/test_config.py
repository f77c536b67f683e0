import pytest
from pydantic import ValidationError

from backend.agents.config import AgentsConfig


def test_defaults_need_no_key():
    config = AgentsConfig()
    assert (config.weather_provider, config.weather_base_url, config.weather_timeout_seconds) == ("open-meteo", None, 5)


@pytest.mark.parametrize("key", [None, "", "  "])
def test_amap_without_a_key_names_the_variable(key):
    with pytest.raises(ValidationError, match="WEATHER_API_KEY"):
        AgentsConfig(weather_provider="amap", weather_api_key=key)


@pytest.mark.parametrize(
    "values",
    [{"weather_provider": "other"}, {"weather_base_url": "ftp://x"}, {"weather_timeout_seconds": 0}],
)
def test_wrong_values_are_refused(values):
    with pytest.raises(ValidationError):
        AgentsConfig(**values)


def test_base_url_loses_its_last_slash():
    assert AgentsConfig(weather_base_url=" http://localhost:1/ ").weather_base_url == "http://localhost:1"
