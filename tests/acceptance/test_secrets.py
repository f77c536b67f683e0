"""Canaries in every secret setting, the most talkative log level, a provider that repeats the key (J12)."""

import json
import secrets
from pathlib import Path
from typing import Any, get_args

import httpx
from pydantic import SecretStr
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from backend.settings import Settings
from tests.support.chat_client import signed_in
from tests.support.databases import own_database, postgres_proxy, redis_proxy
from tests.support.fake_llm import FakeLLM, Reply, Request, raw, reset_after, status
from tests.support.fake_llm import text as answer_text
from tests.support.fake_llm_replies import delta, event
from tests.support.server import ServerProcess
from tests.support.waiting import until

CANARY = "kanarie4711zebra"
_KINDS = {name: (field.annotation, *get_args(field.annotation)) for name, field in Settings.model_fields.items()}
SECRETS = {name for name, kinds in _KINDS.items() if SecretStr in kinds}
KNOWN = {"database_url", "redis_url", "llm_api_key", "embedding_api_key", "jwt_secret_key", "admin_invite_code"}


VALUES = {name: CANARY + secrets.token_hex(24) for name in sorted(SECRETS)}


def canary(name: str) -> str:
    """The value of a secret setting, of its own for each."""
    return VALUES[name]


def environment(database: URL, redis_url: str, llm: FakeLLM) -> dict[str, str]:
    """A canary for each secret setting; those that lead somewhere carry theirs as the password."""
    values = {name.upper(): canary(name) for name in SECRETS}
    values["DATABASE_URL"] = database.set(password=canary("database_url")).render_as_string(hide_password=False)
    values["REDIS_URL"] = redis_url.replace("redis://", f"redis://:{canary('redis_url')}@")
    if "OTEL_EXPORTER_OTLP_HEADERS" in values:
        values["OTEL_EXPORTER_OTLP_HEADERS"] = f"authorization={canary('otel_exporter_otlp_headers')}"
    return {**values, "LOG_LEVEL": "debug", "LLM_BASE_URL": llm.base_url, "LLM_MODEL": "fake"}


def echo(request: Request) -> Reply:
    """A provider that repeats what it was sent, the key with it."""
    told = json.dumps({"headers": request.headers, "url": request.path})
    return status(401, {"error": {"message": f"Incorrect API key provided: {told}", "type": "invalid_request_error"}})


def echo_in_stream(request: Request) -> Reply:
    error = {"error": {"message": f"bad key {request.headers.get('authorization')}", "code": 500}}
    return Reply(lambda asked: raw(event(delta({"content": "so far"})), event(error)).steps(asked))


async def everything_stored(url: URL) -> str:
    """Every row of every table as text."""
    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.connect() as connection:
        tables = await connection.execute(text("select tablename from pg_tables where schemaname = 'public'"))
        rows = [
            str(row)
            for table in tables.scalars().all()
            for row in (await connection.execute(text(f"select t::text from {table} t"))).scalars()
        ]
    await engine.dispose()
    assert len(rows) > 5
    return "\n".join(rows)


async def test_j12_no_secret_in_any_answer_log_line_or_row(
    postgres_url: URL, valkey_url: str, worker_id: str, data_dir: Path
):
    assert KNOWN <= SECRETS
    async with (
        own_database(postgres_url, f"secrets_{worker_id}") as database,
        FakeLLM() as llm,
        postgres_proxy(database) as (postgres, through),
        redis_proxy(valkey_url) as (_, redis_url),
    ):
        server = ServerProcess(data_dir, env=environment(through, redis_url, llm))
        server._embedded = (False, False)
        try:
            await server.start(wait=False)
            answers = await _talk(server, llm, postgres)
            await server.sigterm()
            logs, stored = server.logs(), await everything_stored(database)
        finally:
            await server.close()
        for where, found in (("answers", "\n".join(answers)), ("logs", logs), ("rows", stored)):
            assert CANARY not in found, (where, found[max(0, found.find(CANARY) - 500) : found.find(CANARY) + 300])
            assert "correct horse" not in found, where
        assert "Bearer ey" not in logs + stored
        assert "DEBUG" in logs.upper()
        assert "started" in logs
        assert canary("llm_api_key") in json.dumps([request.headers for request in llm.chats]), "the key was used"


async def _talk(server: ServerProcess, llm: FakeLLM, postgres: Any) -> list[str]:
    """All kinds of answers, right and wrong ones."""
    texts: list[str] = []

    async def note(response: httpx.Response) -> None:
        await response.aread()
        token = response.json().get("access_token", "") if response.url.path.startswith("/auth/") else ""
        texts.append(response.text.replace(token, "") + str(response.headers))

    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:

        async def live() -> bool:
            assert server.returncode is None, server.logs()[-3000:]
            try:
                return (await http.get("/health/live")).status_code == 200
            except httpx.TransportError:
                return False

        await until(live, 120)
        invited = {"username": "root", "password": "correct horse battery", "role": "admin"}
        await note(await http.post("/auth/register", json={**invited, "admin_code": canary("admin_invite_code")}))
        await note(await http.post("/auth/register", json={**invited, "password": ["correct horse battery"]}))
        await note(await http.post("/auth/login", json={**invited, "password": "correct horse wrong"}))
        texts += [(await http.get(path)).text for path in ("/openapi.json", "/docs", "/health/ready", "/metrics", "/")]
    async with signed_in(server.url, "alice") as alice:
        form = {"files": {"file": ("a.txt", b"The pump holds 24 bar.")}}
        await note(await alice.http.post("/documents/upload", **form))
        for reply in (echo, echo_in_stream, lambda _: reset_after(3), lambda _: answer_text("fine")):
            llm.default = reply
            seen = await alice.ask("How?", "s")
            texts += [seen.raw.decode(), json.dumps(await alice.run(seen.run_id))]
            texts.append((await alice.post("/chat", {"message": "And?", "session_id": "b"})).text)
        texts.append(json.dumps(await alice.messages("s")))
        assert sum('"provider_rejected"' in item for item in texts) >= 2
        paths = ("/sessions", "/documents", "/sessions/s", "/sessions?cursor=x", "/health/ready", "/chat/runs/x")
        texts += [(await alice.get(path)).text for path in paths]
        postgres.refuse()
        for path in ("/sessions", "/health/ready", "/auth/me"):
            down = await alice.get(path)
            assert down.status_code == 503
            texts.append(down.text)
        await postgres.restore()
    return texts
