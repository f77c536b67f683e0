"""``get_current_weather``: Open-Meteo (no key) or AMap. A failure is a clear text for the model, never an exception."""

import asyncio
from typing import Any, Protocol, cast

import httpx
import orjson
from langchain.tools import ToolRuntime, tool
from langchain_core.tools import BaseTool

from backend.agents.config import AgentsConfig
from backend.agents.context import AgentContext
from backend.agents.thread_state import ThreadState
from backend.catalogue import Language, say
from backend.text import clean_text

TOOL_NAME = "get_current_weather"
MAX_PLACE_CHARS = 100
MAX_ANSWER_BYTES = 256 * 1024

_GEOCODING = "https://geocoding-api.open-meteo.com"
_FORECAST = "https://api.open-meteo.com"
_AMAP = "https://restapi.amap.com"

_WMO: dict[int, tuple[str, str]] = {
    0: ("clear sky", "晴"),
    1: ("mainly clear", "大部晴朗"),
    2: ("partly cloudy", "局部多云"),
    3: ("overcast", "阴"),
    45: ("fog", "雾"),
    48: ("freezing fog", "冻雾"),
    51: ("light drizzle", "小毛毛雨"),
    53: ("drizzle", "毛毛雨"),
    55: ("dense drizzle", "大毛毛雨"),
    56: ("light freezing drizzle", "轻冻毛毛雨"),
    57: ("freezing drizzle", "冻毛毛雨"),
    61: ("light rain", "小雨"),
    63: ("rain", "中雨"),
    65: ("heavy rain", "大雨"),
    66: ("light freezing rain", "轻冻雨"),
    67: ("freezing rain", "冻雨"),
    71: ("light snow", "小雪"),
    73: ("snow", "中雪"),
    75: ("heavy snow", "大雪"),
    77: ("snow grains", "雪粒"),
    80: ("light showers", "小阵雨"),
    81: ("showers", "阵雨"),
    82: ("violent showers", "强阵雨"),
    85: ("light snow showers", "小阵雪"),
    86: ("snow showers", "阵雪"),
    95: ("thunderstorm", "雷暴"),
    96: ("thunderstorm with hail", "雷暴伴冰雹"),
    99: ("thunderstorm with heavy hail", "雷暴伴大冰雹"),
}
"""WMO weather interpretation codes (code table 4677) that Open-Meteo uses."""


class UnknownPlace(Exception):
    """The provider answered, and knows no such place."""


class Weather(Protocol):
    """A weather provider."""

    async def now(self, place: str, language: Language) -> str:
        """One sentence. Raises ``UnknownPlace``, ``httpx.HTTPError``, or ``ValueError`` for an unreadable answer."""
        ...


class OpenMeteo:
    """Place by geocoding, then the current values there. ``base_url`` serves both when set."""

    def __init__(self, http: httpx.AsyncClient, base_url: str | None) -> None:
        self._http = http
        self._geocoding = base_url or _GEOCODING
        self._forecast = base_url or _FORECAST

    async def now(self, place: str, language: Language) -> str:
        query = {"name": place, "count": "1", "language": language, "format": "json"}
        found = _first(await _get(self._http, f"{self._geocoding}/v1/search", query), "results")
        if found is None:
            raise UnknownPlace(place)
        values = "temperature_2m,relative_humidity_2m,weather_code,wind_speed_10m"
        where = {"latitude": _text(found, "latitude"), "longitude": _text(found, "longitude"), "current": values}
        current = _mapping((await _get(self._http, f"{self._forecast}/v1/forecast", where)).get("current"))
        description = _WMO.get(int(float(_text(current, "weather_code"))), ("", ""))[language == "zh"]
        return say(
            "weather_now",
            language,
            place=_text(found, "name"),
            description=description or "–",
            temperature=_text(current, "temperature_2m"),
            humidity=_text(current, "relative_humidity_2m"),
            wind=f"{_text(current, 'wind_speed_10m')} km/h",
        )


class AMap:
    """Place by geocoding to its district code, then the live values of the district."""

    def __init__(self, http: httpx.AsyncClient, base_url: str | None, key: str) -> None:
        self._http = http
        self._base = base_url or _AMAP
        self._key = key

    async def now(self, place: str, language: Language) -> str:
        address = {"key": self._key, "address": place}
        found = _first(await self._call("/v3/geocode/geo", address), "geocodes")
        if found is None:
            raise UnknownPlace(place)
        query = {"key": self._key, "city": _text(found, "adcode"), "extensions": "base"}
        live = _first(await self._call("/v3/weather/weatherInfo", query), "lives")
        if live is None:
            raise UnknownPlace(place)
        return say(
            "weather_now",
            language,
            place=_text(live, "city"),
            description=_text(live, "weather"),
            temperature=_text(live, "temperature"),
            humidity=_text(live, "humidity"),
            wind=f"{_text(live, 'winddirection')} {_text(live, 'windpower')}",
        )

    async def _call(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        answer = await _get(self._http, self._base + path, query)
        if answer.get("status") == "1":
            return answer
        if answer.get("infocode") == "30001":  # how AMap says that an address leads nowhere
            return {}
        raise ValueError("the weather service refused the request")


def build_weather(config: AgentsConfig, http: httpx.AsyncClient) -> Weather:
    """The provider that ``config`` names, over ``http`` (closed by whoever made it)."""
    if config.weather_provider == "amap" and config.weather_api_key is not None:
        return AMap(http, config.weather_base_url, config.weather_api_key.get_secret_value())
    return OpenMeteo(http, config.weather_base_url)


def build_weather_tool(weather: Weather, timeout_seconds: float) -> BaseTool:
    """The tool over ``weather``; an answer takes ``timeout_seconds`` at most, all its requests together."""

    @tool(TOOL_NAME)
    async def get_current_weather(location: str, runtime: ToolRuntime[Any, ThreadState]) -> str:
        """The current weather of a place: description, temperature, humidity, wind.

        Args:
            location: Name of a city or place, for example "Berlin".
        """
        place = clean_text(location).strip()[:MAX_PLACE_CHARS]
        context: AgentContext = runtime.context
        return await _answer(weather, place, context.language, timeout_seconds)

    return get_current_weather


async def _answer(weather: Weather, place: str, language: Language, timeout_seconds: float) -> str:
    try:
        async with asyncio.timeout(timeout_seconds):
            return await weather.now(place, language)
    except UnknownPlace:
        return say("weather_unknown_place", language, place=place)
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, ValueError, OverflowError):
        return say("weather_unavailable", language)


async def _get(http: httpx.AsyncClient, url: str, query: dict[str, str]) -> dict[str, Any]:
    """The JSON object at ``url``; raises ``ValueError`` for anything else or more than ``MAX_ANSWER_BYTES``."""
    async with http.stream("GET", url, params=query) as response:
        response.raise_for_status()
        body = bytearray()
        async for part in response.aiter_bytes():
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                raise ValueError("the answer is too long")
    return _mapping(orjson.loads(body))


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return cast("dict[str, Any]", value)


def _first(answer: dict[str, Any], key: str) -> dict[str, Any] | None:
    items: object = answer.get(key)
    return _mapping(cast("list[object]", items)[0]) if isinstance(items, list) and items else None


def _text(answer: dict[str, Any], key: str) -> str:
    value: object = answer.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{key} is missing")
    return str(value)[:MAX_PLACE_CHARS]
