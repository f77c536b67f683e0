import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from backend.agents.config import AgentsConfig
from backend.agents.tools.weather import build_weather, build_weather_tool
from backend.catalogue import say
from tests.agents.tools.running import call, context

PLACE = {"results": [{"name": "Berlin", "latitude": 52.52, "longitude": 13.41, "country": "Germany"}]}
CURRENT = {
    "current": {"temperature_2m": 21.4, "relative_humidity_2m": 40, "weather_code": 61, "wind_speed_10m": 9.7},
}
GEOCODE = {"status": "1", "geocodes": [{"adcode": "110000"}]}
LIVE = {
    "status": "1",
    "lives": [
        {
            "city": "北京市",
            "weather": "晴",
            "temperature": "5",
            "humidity": "30",
            "winddirection": "北",
            "windpower": "≤3",
        }
    ],
}


@dataclass
class WeatherServer:
    """Answers each path with the JSON (or bytes, or status) that the test put in."""

    answers: dict[str, object]
    delay: float = 0.0
    asked: list[tuple[str, dict[str, list[str]]]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        url = urlsplit(head.split()[1].decode())
        self.asked.append((url.path, parse_qs(url.query)))
        try:
            await asyncio.sleep(self.delay)
            answer = self.answers.get(url.path, 404)
            status, body = (answer, b"no") if isinstance(answer, int) else (200, answer)
            payload = body if isinstance(body, bytes) else json.dumps(body).encode()
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode())
            writer.write(payload)
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def weather(server: WeatherServer, timeout: float = 30, **settings: object) -> AsyncIterator:
    """The weather tool against ``server``."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    config = AgentsConfig(weather_base_url=f"http://127.0.0.1:{port}", **settings)  # type: ignore[arg-type]
    async with listening, httpx.AsyncClient() as http:
        yield build_weather_tool(build_weather(config, http), timeout)


async def test_open_meteo_finds_the_place_and_tells_its_weather():
    server = WeatherServer({"/v1/search": PLACE, "/v1/forecast": CURRENT})
    async with weather(server) as tool:
        message = await call(tool, context(), location=" Berlin ")
    assert message.content == "Berlin: light rain, 21.4 °C, humidity 40 %, wind 9.7 km/h."
    (search, asked), (forecast, where) = server.asked
    assert (search, asked["name"], asked["language"]) == ("/v1/search", ["Berlin"], ["en"])
    assert (forecast, where["latitude"], where["longitude"]) == ("/v1/forecast", ["52.52"], ["13.41"])


async def test_open_meteo_speaks_the_language_of_the_turn():
    server = WeatherServer({"/v1/search": PLACE, "/v1/forecast": CURRENT})
    async with weather(server) as tool:
        message = await call(tool, context("zh"), location="柏林")
    assert message.content == "Berlin：小雨，气温 21.4 °C，湿度 40%，风 9.7 km/h。"
    assert server.asked[0][1]["language"] == ["zh"]


async def test_amap_asks_for_the_district_with_the_key():
    server = WeatherServer({"/v3/geocode/geo": GEOCODE, "/v3/weather/weatherInfo": LIVE})
    async with weather(server, weather_provider="amap", weather_api_key="secret") as tool:
        message = await call(tool, context("zh"), location="北京")
    assert message.content == "北京市：晴，气温 5 °C，湿度 30%，风 北 ≤3。"
    assert [(path, asked["key"]) for path, asked in server.asked] == [
        ("/v3/geocode/geo", ["secret"]),
        ("/v3/weather/weatherInfo", ["secret"]),
    ]
    assert server.asked[1][1]["city"] == ["110000"]


@pytest.mark.parametrize(
    ("provider", "answers"),
    [
        ("open-meteo", {"/v1/search": {"generationtime_ms": 0.1}}),
        ("open-meteo", {"/v1/search": {"results": []}}),
        ("amap", {"/v3/geocode/geo": {"status": "1", "geocodes": []}}),
        ("amap", {"/v3/geocode/geo": {"status": "0", "infocode": "30001"}}),
        ("amap", {"/v3/geocode/geo": GEOCODE, "/v3/weather/weatherInfo": {"status": "1", "lives": []}}),
    ],
)
async def test_unknown_place_is_named_literally(provider, answers):
    async with weather(WeatherServer(answers), weather_provider=provider, weather_api_key="k") as tool:
        message = await call(tool, context(), location="{0.__class__}")
    assert message.content == "The weather service knows no place named {0.__class__}."


@pytest.mark.parametrize(
    ("provider", "answers"),
    [
        ("open-meteo", {}),
        ("open-meteo", {"/v1/search": 500}),
        ("open-meteo", {"/v1/search": b"<html>"}),
        ("open-meteo", {"/v1/search": [1]}),
        ("open-meteo", {"/v1/search": {"results": ["Berlin"]}}),
        ("open-meteo", {"/v1/search": PLACE, "/v1/forecast": {"current": {"weather_code": "many"}}}),
        ("open-meteo", {"/v1/search": PLACE, "/v1/forecast": {}}),
        ("open-meteo", {"/v1/search": PLACE, "/v1/forecast": {"current": {"weather_code": "inf"}}}),
        ("open-meteo", {"/v1/search": b"[" + b" " * 300_000 + b"]"}),
        ("amap", {"/v3/geocode/geo": {"status": "0", "infocode": "10001", "info": "INVALID_USER_KEY"}}),
    ],
)
async def test_a_failure_is_a_clear_text(provider, answers):
    async with weather(WeatherServer(answers), weather_provider=provider, weather_api_key="k") as tool:
        message = await call(tool, context(), location="Berlin")
    assert message.content == say("weather_unavailable")


async def test_a_slow_service_is_given_up():
    server = WeatherServer({"/v1/search": PLACE}, delay=60)
    async with asyncio.timeout(30), weather(server, timeout=0.2) as tool:
        message = await call(tool, context(), location="Berlin")
    assert message.content == say("weather_unavailable")


async def test_a_service_that_is_not_there():
    config = AgentsConfig(weather_base_url="http://127.0.0.1:9")
    async with httpx.AsyncClient() as http:
        tool = build_weather_tool(build_weather(config, http), 30)
        message = await call(tool, context(), location="Berlin")
    assert message.content == say("weather_unavailable")
