"""ServerProcess: a real ``citewire serve`` in a process group of its own, to be asked, killed and started again.

async with ServerProcess(data_dir, database_url=database_url, redis_url=redis_url) as server:
    ...  # httpx.AsyncClient(base_url=server.url)
    await server.kill9()
    await server.restart()
"""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx
from sqlalchemy import URL

from backend.infra.embedded.postgres import embedded_postgres
from backend.infra.embedded.valkey import embedded_valkey

ROOT = Path(__file__).parents[2]
READY_SECONDS = 120.0
END_SECONDS = 60.0
POLL_SECONDS = 0.05
_SIGNING_KEY = secrets.token_urlsafe(48)  # one for all servers of a test run, as several on one database need


class ServerProcess:
    """``database_url`` and ``redis_url`` absent: the server runs its embedded ones in ``data_dir``.

    ``env`` adds variables (``LLM_BASE_URL``, ``LEASE_SECONDS`` …) to an otherwise empty environment; no ``.env`` is
    read. ``arguments`` follow ``serve``; ``python`` is the interpreter of another install, ``module`` what it runs. The
    port is chosen once and stays over restarts.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        database_url: URL | str | None = None,
        redis_url: str | None = None,
        env: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        python: Path | None = None,
        module: str = "backend",
    ) -> None:
        self.port = free_port()
        self.env = _environment(data_dir, self.port, database_url, redis_url) | dict(env or {})
        self._data_dir = data_dir
        self._arguments = arguments
        self._python = python or Path(sys.executable)
        self._module = module
        self._embedded = (database_url is None, redis_url is None)
        self._home = Path(tempfile.mkdtemp(prefix="citewire-server-"))
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.returncode

    def logs(self) -> str:
        """All that every start so far wrote on standard output and standard error."""
        path = self._home / "server.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self, *, wait: bool = True) -> None:
        """Start it and, with ``wait``, return when ``/health/ready`` says ok.

        Raises ``RuntimeError`` with the end of the log when it ends before, ``TimeoutError`` when it takes too long.
        """
        assert self._process is None or self._process.returncode is not None, "the server still runs"
        with (self._home / "server.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                self._python,
                "-m",
                self._module,
                "serve",
                *self._arguments,
                cwd=self._home,
                env=self.env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if wait:
            await self.wait_ready()

    async def wait_ready(self, timeout: float = READY_SECONDS) -> None:
        """Return when ``/health/ready`` answers 200 with status ``ok``. Raises as :meth:`start` does."""
        try:
            async with asyncio.timeout(timeout), httpx.AsyncClient(base_url=self.url, timeout=10) as client:
                while not await self._ready(client):  # noqa: ASYNC110  # another process tells by its answers only
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"the server was not ready in {timeout} s:\n{self.logs()[-4000:]}") from error

    async def _ready(self, client: httpx.AsyncClient) -> bool:
        if self.returncode is not None:
            raise RuntimeError(f"the server ended with {self.returncode}:\n{self.logs()[-4000:]}")
        try:
            answer = await client.get("/health/ready")
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json()["status"] == "ok"

    async def kill9(self) -> None:
        """SIGKILL to the whole process group; returns when the server is gone."""
        self._signal_group(signal.SIGKILL)
        await self.wait()

    async def sigterm(self, *, wait: bool = True) -> int | None:
        """SIGTERM to the server process; with ``wait`` returns its exit code (0)."""
        self.send_signal(signal.SIGTERM)
        return await self.wait() if wait else None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the server process alone, if it still runs."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    async def wait(self, timeout: float = END_SECONDS) -> int:
        """Its exit code, once it has ended. Raises ``TimeoutError``."""
        assert self._process is not None, "the server was not started"
        async with asyncio.timeout(timeout):
            return await self._process.wait()

    async def restart(self) -> None:
        """Start it again on the same data and port; one that still runs is ended by SIGTERM first."""
        if self.returncode is None:
            await self.sigterm()
        await self.start()

    async def close(self) -> None:
        """End everything that belongs to it, the embedded servers too.

        Raises ``TimeoutError``, with the end of the log, when it had to be killed.
        """
        stuck = False
        if self._process is not None:
            try:
                await self.sigterm()
            except TimeoutError:
                stuck = True
            ended_in_order = self.returncode == 0
            self._signal_group(signal.SIGKILL)
            await self.wait()
            if not ended_in_order:
                await asyncio.to_thread(self._end_embedded)
        said = self.logs()[-4000:]
        shutil.rmtree(self._home, ignore_errors=True)
        if stuck:
            raise TimeoutError(f"the server did not end within {END_SECONDS} s and was killed:\n{said}")

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _end_embedded(self) -> None:
        """A killed server leaves its PostgreSQL and Valkey behind: adopt them, and end them as their last user."""
        postgres, valkey = self._embedded
        if postgres:
            with embedded_postgres(self._data_dir):
                pass
        if valkey:
            with embedded_valkey(self._data_dir):
                pass


def _environment(data_dir: Path, port: int, database_url: URL | str | None, redis_url: str | None) -> dict[str, str]:
    env = {
        "PATH": os.defpath,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "DATA_DIR": str(data_dir),
        "PORT": str(port),
        "CHAT_RATE_PER_MINUTE": "0",
        "LOGIN_RATE_PER_MINUTE": "0",
        "REGISTER_RATE_PER_MINUTE": "0",
    }
    if database_url is not None:
        external = database_url.render_as_string(hide_password=False) if isinstance(database_url, URL) else database_url
        # The secret is generated only beside embedded data; an external database asks for one.
        env |= {"DATABASE_URL": external, "JWT_SECRET_KEY": _SIGNING_KEY}
    if redis_url is not None:
        env["REDIS_URL"] = redis_url
    return env


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
