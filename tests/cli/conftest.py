"""The command as a process of its own, and a server for it."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests.support.server import ROOT, ServerProcess

DEADLINE = 120.0
PASSWORD = "correct horse 42"


class Cli:
    """``citewire`` with a configuration directory of its own."""

    def __init__(self, config_dir: Path, url: str) -> None:
        self.config_dir = config_dir
        self.command = [sys.executable, "-m", "backend"]
        self.env = {
            "PATH": os.defpath,
            "PYTHONPATH": str(ROOT),
            "CITEWIRE_CONFIG_DIR": str(config_dir),
            "CITEWIRE_URL": url,
        }

    def run(
        self, *arguments: object, stdin: str | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """What the command printed and its exit code; its standard input is no terminal."""
        done = subprocess.run(
            [*self.command, *map(str, arguments)],
            cwd=self.config_dir.parent,
            env=self.env | dict(env or {}),
            input=stdin or "",
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=DEADLINE,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def register(self, username: str) -> None:
        """Make an account and keep its token."""
        done = self.run("login", "--register", "--username", username, "--password-stdin", stdin=PASSWORD + "\n")
        assert done.returncode == 0, done.stderr

    @property
    def token(self) -> str:
        """The saved token."""
        return json.loads((self.config_dir / "credentials.json").read_bytes())["token"]

    async def start(self, *arguments: object) -> asyncio.subprocess.Process:
        """The command running, with pipes."""
        return await asyncio.create_subprocess_exec(
            *self.command,
            *map(str, arguments),
            cwd=self.config_dir.parent,
            env=self.env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )


async def messages_of(server: ServerProcess, token: str, session_id: str) -> list[dict[str, Any]]:
    """The stored messages of a session."""
    async with httpx.AsyncClient(base_url=server.url, headers={"Authorization": f"Bearer {token}"}) as client:
        return (await client.get(f"/sessions/{session_id}")).json()["messages"]


@pytest.fixture
def make_cli(tmp_path: Path) -> Callable[[str], Cli]:
    """A command for the server at an address."""
    return lambda url: Cli(tmp_path / "config", url)


async def _create_database(url: URL, name: str) -> None:
    engine = create_async_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text(f'drop database if exists "{name}" with (force)'))
        await connection.execute(text(f'create database "{name}"'))
    await engine.dispose()


@pytest.fixture(scope="module")
def server(postgres_url: URL, valkey_url: str, worker_id: str) -> Iterator[ServerProcess]:
    """A server without a model provider, shared by the tests of a module; each test has accounts of its own."""
    name = f"cli_{worker_id}"
    asyncio.run(_create_database(postgres_url, name))
    data_dir = Path(tempfile.mkdtemp(prefix="citewire-data-"))
    with asyncio.Runner() as runner:
        process = ServerProcess(data_dir, database_url=postgres_url.set(database=name), redis_url=valkey_url)
        runner.run(process.__aenter__())
        yield process
        logs = process.logs()  # shown with a test that failed
        print(logs[-8000:])
        runner.run(process.close())
    shutil.rmtree(data_dir, ignore_errors=True)
    with Redis.from_url(valkey_url) as redis:
        redis.flushdb()


@pytest.fixture
def cli(server: ServerProcess, make_cli: Callable[[str], Cli], request: pytest.FixtureRequest) -> Cli:
    """The command, signed in with an account of this test's own."""
    made = make_cli(server.url)
    made.register(account_name(request))
    return made


def account_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    node: Any = request.node
    return f"{abs(hash(node.name)):x}-{node.name}"[:60].replace("[", "-").replace("]", "")
