"""What the tests of both servers share: asking a server, and processes that hold one."""

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import redis
from sqlalchemy import URL, make_url

ROOT = Path(__file__).parents[3]
DEADLINE = 60.0
NOBODY = 65534


def query(url: URL | str, sql: str) -> Any:
    """The first value of `sql`, from a connection of its own."""
    parts = make_url(url)

    async def run() -> Any:
        connection = await asyncpg.connect(
            host=str(parts.query["host"]), user=parts.username, database=parts.database, timeout=DEADLINE
        )
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(run())


def answers(url: str) -> bool:
    """Whether the server behind `url` (either kind) takes a connection and answers."""
    try:
        if url.startswith("unix:"):
            with redis.Redis.from_url(url, socket_timeout=DEADLINE) as client:
                return bool(client.ping())
        return query(url, "select 1") == 1
    except (OSError, redis.RedisError, asyncpg.PostgresError):
        return False


@dataclass
class Holder:
    """A running `holder.py` that has its server."""

    process: subprocess.Popen[str]
    url: str

    def leave(self) -> str:
        """End it in order; what it printed meanwhile."""
        said, _ = self.process.communicate(timeout=DEADLINE)
        assert self.process.returncode == 0, said
        return said

    def interrupt(self) -> str:
        """Ctrl-C: SIGINT to its whole process group. What it printed until its end."""
        os.killpg(self.process.pid, signal.SIGINT)
        said, _ = self.process.communicate(timeout=DEADLINE)
        assert self.process.returncode == 0, said
        return said

    def kill(self) -> None:
        """kill -9: no clean-up of any kind."""
        self.process.kill()
        self.process.communicate(timeout=DEADLINE)


class Holders:
    """Starts holders; those that are left at the end are killed."""

    def __init__(self, temporary: Path) -> None:
        self._temporary = temporary
        self._started: list[subprocess.Popen[str]] = []

    def launch(self, *arguments: object, temporary: Path | None = None) -> subprocess.Popen[str]:
        """A holder in a process group of its own that may not have its server yet."""
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.infra.embedded.holder", *map(str, arguments)],
            cwd=ROOT,
            env={"TMPDIR": str(temporary or self._temporary), "PATH": "/usr/bin:/bin"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def start(self, *arguments: object, temporary: Path | None = None) -> Holder:
        return self.wait(self.launch(*arguments, temporary=temporary))

    def wait(self, process: subprocess.Popen[str]) -> Holder:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url.startswith(("postgresql+asyncpg:", "unix:")), url
        return Holder(process, url)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=DEADLINE)


def processes_of(directory: Path) -> list[int]:
    """Living processes whose command line mentions a path below `directory`."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(directory) + b"/" in command:
                found.append(int(entry.name))
    return found
