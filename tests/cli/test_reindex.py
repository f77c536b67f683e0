"""``citewire reindex`` as a process, beside a running server, killed and gone on with."""

import asyncio
import contextlib
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from redis import Redis
from sqlalchemy import URL

from backend.knowledge.index.lance import LanceChunkIndex
from backend.knowledge.index.lance_tables import Generations, connect
from tests.cli.conftest import Cli, account_name
from tests.support.databases import own_database
from tests.support.fake_llm_checks import embedding
from tests.support.fake_rerank import Answer, FakeReranker, RerankRequest
from tests.support.server import ROOT, ServerProcess
from tests.support.waiting import until

QUESTION = "How many litres does pump 17 deliver?"


class FakeEmbeddings(FakeReranker):
    """An embedding provider; only ``allowed`` batches of passages are answered, if it is set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.answer = self._embed
        self.allowed: int | None = None

    def _embed(self, request: RerankRequest) -> Answer | None:
        if self.allowed is not None and len(request.body["input"]) > 1:
            if self.allowed == 0:
                return None
            self.allowed -= 1
        return 200, embedding(request.body)


DIMENSIONS = len(embedding({"model": "fake", "input": ["x"]})["data"][0]["embedding"])


@pytest.fixture
async def embeddings() -> AsyncIterator[FakeEmbeddings]:
    async with FakeEmbeddings() as made:
        yield made


@pytest.fixture
async def server_of_embeddings(
    embeddings: FakeEmbeddings, data_dir: Path, postgres_url: URL, valkey_url: str, worker_id: str
) -> AsyncIterator[ServerProcess]:
    env = {
        "EMBEDDING_BASE_URL": f"{embeddings.base_url}/v1",
        "EMBEDDING_MODEL": "fake",
        "EMBEDDING_DIMENSIONS": str(DIMENSIONS),
    }
    async with (
        own_database(postgres_url, f"reindex_{worker_id}") as url,
        ServerProcess(data_dir, database_url=url, redis_url=valkey_url, env=env) as server,
    ):
        yield server
    with Redis.from_url(valkey_url) as redis:
        redis.flushdb()


async def rows_of_rebuild(uri: str) -> int:
    """How many leaves the unfinished rebuild holds."""
    connection = await connect(uri)
    try:
        name = await Generations(connection).building()
        return 0 if name is None else await (await connection.open_table(name)).count_rows()
    finally:
        connection.close()


async def leaves(uri: str) -> int:
    index = await LanceChunkIndex.open(uri, dimensions=DIMENSIONS, embedder="fake")
    try:
        return sum((await index.versions()).values())
    finally:
        await index.aclose()


async def test_a_killed_reindex_is_gone_on_with_and_the_server_answers_all_the_time(
    server_of_embeddings: ServerProcess,
    embeddings: FakeEmbeddings,
    make_cli: Callable[[str], Cli],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    server, cli = server_of_embeddings, make_cli(server_of_embeddings.url)
    await asyncio.to_thread(cli.register, account_name(request))
    document = tmp_path / "pumps.txt"
    filler = "It is looked after every week. " * 25
    document.write_text("\n\n".join(f"Pump {n} delivers {n * 3} litres a second. {filler}" for n in range(160)))
    assert (await asyncio.to_thread(cli.run, "ingest", document)).returncode == 0
    uri = str(Path(server.env["DATA_DIR"]) / "index")
    held = await leaves(uri)
    assert held > 128
    embeddings.allowed = 1
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "backend", "reindex", cwd=ROOT, env=server.env, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await until(lambda: rows_of_rebuild(uri))
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert await rows_of_rebuild(uri) == 64
    assert "51 litres" in (await asyncio.to_thread(cli.run, "ask", QUESTION)).stdout
    embeddings.allowed = None
    embeddings.requests.clear()
    done = await asyncio.to_thread(cli.run, "reindex", env=server.env)
    assert done.returncode == 0, done.stderr
    assert re.search(rf"^{held} leaves of \d+ documents are indexed; the new index answers$", done.stdout, re.M)
    assert sum(len(one.body["input"]) for one in embeddings.requests) == held - 64
    assert await rows_of_rebuild(uri) == 0
    assert await leaves(uri) == held
    assert "51 litres" in (await asyncio.to_thread(cli.run, "ask", QUESTION)).stdout
    env = server.env | {"EMBEDDING_MODEL": "other", "PORT": "0"}
    refused = await asyncio.to_thread(cli.run, "serve", env=env)
    assert refused.returncode != 0
    assert "EMBEDDING_MODEL" in refused.stderr + refused.stdout
    assert "citewire reindex" in refused.stderr + refused.stdout


def test_what_is_wrong_is_one_line(make_cli: Callable[[str], Cli], tmp_path: Path) -> None:
    cli = make_cli("http://127.0.0.1:1")
    (tmp_path / "config").mkdir()
    env = {"DATA_DIR": str(tmp_path / "data"), "DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/d"}
    done = cli.run("reindex", env=env)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1:] == [
        "citewire: DATABASE_URL: the database cannot be reached or brought to its schema"
    ]
    assert "hunter2" not in done.stderr + done.stdout
