"""The support that starts real servers."""

import os
from pathlib import Path

import httpx
import pytest
from sqlalchemy import URL

from tests.support.server import ServerProcess


async def test_a_server_is_killed_and_started_again(data_dir: Path, database_url: URL, redis_url: str) -> None:
    async with ServerProcess(data_dir, database_url=database_url, redis_url=redis_url) as server:
        first = server.pid
        await server.kill9()
        assert server.returncode == -9
        await server.restart()
        assert server.pid != first
        async with httpx.AsyncClient(base_url=server.url) as client:
            assert (await client.get("/health/live")).json() == {"status": "ok"}
        assert await server.sigterm() == 0
        assert "started" in server.logs()
    with pytest.raises(ProcessLookupError):
        os.killpg(server.pid, 0)


async def test_a_start_that_fails_tells_why(data_dir: Path) -> None:
    with pytest.raises(RuntimeError, match="LEASE_SECONDS"):
        async with ServerProcess(data_dir, env={"LEASE_SECONDS": "never"}):
            pass
