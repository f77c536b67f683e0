"""PostgreSQL and Redis behind a FaultProxy."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from sqlalchemy import URL

from tests.support.fault_proxy import FaultProxy


@asynccontextmanager
async def postgres_proxy(url: URL) -> AsyncIterator[tuple[FaultProxy, URL]]:
    """A proxy in front of the server of ``url`` (on a unix socket), and the address that leads through it."""
    async with FaultProxy(Path(str(url.query["host"])) / ".s.PGSQL.5432") as proxy:
        yield proxy, url.set(host=proxy.host, port=proxy.port, query={})


@asynccontextmanager
async def redis_proxy(url: str) -> AsyncIterator[tuple[FaultProxy, str]]:
    """A proxy in front of the server of ``url`` (``unix://path?db=n``), and the address that leads through it."""
    parts = urlsplit(url)
    number = parse_qs(parts.query).get("db", ["0"])[0]
    async with FaultProxy(Path(parts.path)) as proxy:
        yield proxy, f"redis://{proxy.host}:{proxy.port}/{number}"
