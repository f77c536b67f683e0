"""The same over a real socket and a real server: early answers, access log, no secret in any line."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest
import structlog
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr
from sqlalchemy import URL

from backend.api.config import ApiConfig
from backend.api.deps import Services
from backend.api.router import api_router, install
from backend.auth.config import AuthConfig
from backend.infra.database.engine import create_engine
from backend.log import configure_logging
from tests.api.conftest import bearer
from tests.support.sockets import reset

CANARY = "kanarie" + secrets.token_hex(8)


@pytest.fixture
def auth_config() -> AuthConfig:
    return AuthConfig(admin_invite_code=SecretStr(CANARY + "-invite"), login_rate_per_minute=0)


@pytest.fixture
def logging_put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:], root.level = handlers, level
    structlog.configure(**configured)


@pytest.fixture
async def server(services: Services, api_config: ApiConfig) -> AsyncIterator[httpx.AsyncClient]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, object]]:
        yield {"services": services}

    app = FastAPI(lifespan=lifespan)
    app.include_router(api_router())
    install(app, api_config, max_upload_bytes=100_000)

    @app.get("/crash")
    async def crash() -> None:
        raise RuntimeError(f"no connection to postgresql://user:{CANARY}@db/x")

    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="on"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # the server offers no event
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        yield client
    server.should_exit = True
    await task


async def test_j12_no_secret_reaches_a_log_line(
    server: httpx.AsyncClient, services: Services, capsys: pytest.CaptureFixture[str], logging_put_back: None
) -> None:
    configure_logging("debug")
    password = CANARY + "-password"
    body = {"username": "alice", "password": password, "role": "admin", "admin_code": CANARY + "-invite"}
    token = (await server.post("/auth/register", json=body)).json()["access_token"]
    texts = [
        (await server.post("/auth/register", json={**body, "username": "bob"})).text,
        (await server.get("/auth/me", headers=bearer(token))).text,
        (await server.get("/auth/me", params={"access_token": CANARY}, headers=bearer(token))).text,
        (await server.get("/auth/me", params={"q": CANARY}, headers=bearer(token))).text,
        (await server.get("/auth/me", headers=bearer(CANARY))).text,
        (await server.get("/auth/me", headers={"Cookie": f"session={CANARY}", "X-Api-Key": CANARY})).text,
        (await server.post("/auth/login", json={"username": "alice", "password": CANARY + "-wrong"})).text,
        (await server.post("/auth/login", json={"username": 1, "password": [CANARY]})).text,
        (await server.post("/auth/login", content=f'{{"password": "{CANARY}"')).text,
        (await server.get("/crash", headers=bearer(token))).text,
    ]
    url = URL.create("postgresql+asyncpg", username="x", password=CANARY, host="127.0.0.1", port=1)
    broken = create_engine(url, pool_size=1)
    services.auth._accounts._engine = broken
    texts.append((await server.post("/auth/login", json={"username": "alice", "password": password})).text)
    await broken.dispose()
    for answer in texts[1:]:
        assert CANARY not in answer
    output = "".join(capsys.readouterr())
    assert CANARY not in output
    assert token not in output
    for expected in ("request_crashed", "storage_unavailable", "GET /auth/me HTTP/1.1", "no connection to"):
        assert expected in output
    assert output.count("request_crashed") == 1
    assert "Exception in ASGI application" not in output


async def test_an_early_answer_arrives_while_the_body_is_still_being_sent(server: httpx.AsyncClient) -> None:
    port = server.base_url.port
    assert port is not None
    for path, head, status in (
        ("/documents/upload", b"Content-Length: 1000000000\r\n", b"401"),
        ("/auth/login", b"Content-Length: 1000000000\r\n", b"413"),
        ("/auth/login", b"Transfer-Encoding: chunked\r\n", b"413"),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + head + b"\r\n")
        if b"chunked" in head:
            writer.write(b"186A0\r\n" + b"x" * 100_000 + b"\r\n")
        line = await asyncio.wait_for(reader.readline(), 30)
        assert line.split()[1] == status
        reset(writer.transport)


async def test_the_state_of_the_lifespan_reaches_every_request(server: httpx.AsyncClient) -> None:
    answers = await asyncio.gather(*(server.get("/health/ready") for _ in range(10)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.headers["X-Request-Id"] for answer in answers}) == 10
