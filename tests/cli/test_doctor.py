"""What the doctor says of an install that is well, and of one that was broken on purpose."""

import asyncio
import os
import re
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from backend.infra.embedded.postgres import embedded_postgres
from tests.cli.conftest import Cli
from tests.infra.embedded.support import processes_of
from tests.support.fake_llm import FakeLLM
from tests.support.server import ServerProcess

MakeCli = Callable[[str], Cli]
Broken = Callable[[Path], None]


def report(cli: Cli, env: dict[str, str]) -> tuple[int, dict[str, tuple[str, str]], str]:
    """Exit code, state and text by what was looked at (the worst of several), and everything that was printed."""
    done = cli.run("doctor", env=env)
    assert done.stderr == ""
    found: dict[str, tuple[str, str]] = {}
    for line in done.stdout.splitlines():
        match = re.fullmatch(r"(ok|warn|fail) +([^:]+): (.+)", line)
        if match is None:
            assert line.startswith("     type: "), line
        elif match[2] not in found or match[1] == "fail":
            found[match[2]] = (match[1], match[3])
    return done.returncode, found, done.stdout


@pytest.fixture
def doctor_cli(make_cli: MakeCli) -> Cli:
    return make_cli("http://127.0.0.1:1")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, services_dir: Path) -> Iterator[Path]:
    """A data directory with a document in it, whose servers do not run."""
    data_dir = services_dir / f"doctor-{os.getpid()}"
    data_dir.mkdir(mode=0o711)
    home = tmp_path_factory.mktemp("doctor")
    notes = home / "notes.txt"
    notes.write_text("The harbour master is called Okonkwo.\n", encoding="utf-8")
    with asyncio.Runner() as runner:
        server = ServerProcess(data_dir)
        runner.run(server.__aenter__())
        cli = Cli(home / "config", server.url)
        cli.register("ada")
        assert cli.run("ingest", notes).returncode == 0
        runner.run(server.close())
    yield data_dir
    shutil.rmtree(data_dir)


@pytest.fixture
def broken_copy(filled: Path, data_dir: Path) -> Path:
    """A copy of the filled directory, to be broken."""
    shutil.copytree(filled, data_dir, symlinks=True, dirs_exist_ok=True)
    for path in filled.rglob("*"):
        owner, target = path.lstat(), data_dir / path.relative_to(filled)
        if target.exists():
            os.chown(target, owner.st_uid, owner.st_gid, follow_symlinks=False)
    return data_dir


def environment(data_dir: Path) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return {"DATA_DIR": str(data_dir), "PORT": str(probe.getsockname()[1])}


def test_a_fresh_install_is_well_and_nothing_is_left_running(doctor_cli: Cli, data_dir: Path) -> None:
    code, found, output = report(doctor_cli, environment(data_dir))
    assert code == 0, output
    assert {state for state, _ in found.values()} == {"ok"}
    names = ["Python", ".env", "Options", "DATA_DIR", "Signing key", "PostgreSQL", "Clock", "Schema", "Cache"]
    assert list(found) == [*names, "Embeddings", "Index", "Port", "Chat model", "Reranking"]
    assert processes_of(data_dir) == []
    assert not (data_dir / "index").exists()


async def test_beside_a_running_server_it_says_who_listens(data_dir: Path, doctor_cli: Cli) -> None:
    async with ServerProcess(data_dir) as server:
        code, found, output = await asyncio.to_thread(report, doctor_cli, server.env)
        assert code == 0, output
        assert found["Port"] == ("ok", f"Citewire answers at {server.url}")
        assert found["Schema"][0] == "ok"
        assert found["Index"] == ("ok", "0 passages of 0 documents, as in PostgreSQL")


def replaced_by_a_file(data_dir: Path) -> None:
    shutil.rmtree(data_dir)
    data_dir.write_text("x")


def control_file_damaged(data_dir: Path) -> None:
    (data_dir / "postgres" / "global" / "pg_control").write_bytes(bytes(8192))


def no_database(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "postgres")


def no_version_file(data_dir: Path) -> None:
    (data_dir / "postgres" / "PG_VERSION").unlink()


def index_damaged(data_dir: Path) -> None:
    for path in (data_dir / "index").rglob("*.manifest"):
        path.write_bytes(b"x")


def index_gone(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "index")


def key_damaged(data_dir: Path) -> None:
    (data_dir / "jwt_secret").write_text("short")


def documents_a_file(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "documents")
    (data_dir / "documents").write_text("x")


def lock_a_directory(data_dir: Path) -> None:
    (data_dir / "valkey.lock").unlink()
    (data_dir / "valkey.lock").mkdir()


@pytest.mark.parametrize(
    ("break_it", "what", "remedy"),
    [
        (replaced_by_a_file, "DATA_DIR", "mv {dir} {dir}.old"),
        (control_file_damaged, "PostgreSQL", "tail -n 20 {dir}/postgres.log"),
        (no_database, "PostgreSQL", "put a backup of it in its place"),
        (no_version_file, "PostgreSQL", "mv {dir}/postgres {dir}/postgres.broken"),
        (index_damaged, "Index", "mv {dir}/index {dir}/index.broken && citewire reindex"),
        (index_gone, "Index", "citewire reindex"),
        (key_damaged, "Signing key", "rm {dir}/jwt_secret"),
        (documents_a_file, "DATA_DIR", "mv {dir}/documents {dir}/documents.old"),
        (lock_a_directory, "Cache", ""),
    ],
)
def test_what_is_broken_fails_with_what_to_type(
    broken_copy: Path, doctor_cli: Cli, break_it: Broken, what: str, remedy: str
) -> None:
    code, found, output = report(doctor_cli, environment(broken_copy))
    assert code == 0, output  # before
    assert found["Index"] == ("ok", "1 passages of 1 documents, as in PostgreSQL")
    break_it(broken_copy)
    try:
        code, found, output = report(doctor_cli, environment(broken_copy))
        assert code == 1
        assert found[what][0] == "fail", output
        assert remedy.format(dir=broken_copy) in output
        assert "Traceback" not in output
    finally:
        if broken_copy.is_file():
            broken_copy.unlink()
            broken_copy.mkdir()
    assert processes_of(broken_copy) == []


async def test_an_index_that_lacks_passages_fails_with_their_number(broken_copy: Path, doctor_cli: Cli) -> None:
    def count_more() -> URL:
        with embedded_postgres(broken_copy) as url:
            asyncio.run(execute(url, "update document_versions set chunk_count = 5"))
        return url

    await asyncio.to_thread(count_more)
    code, found, _ = await asyncio.to_thread(report, doctor_cli, environment(broken_copy))
    assert code == 1
    assert found["Index"] == ("fail", "4 of 5 passages are not in it and cannot be found")


async def execute(url: URL, statement: str) -> None:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.execute(text(statement))
    await engine.dispose()


def test_every_wrong_option_is_named_and_no_value_shown(data_dir: Path, doctor_cli: Cli) -> None:
    env = {"DATA_DIR": str(data_dir), "PORT": "many", "RETRIEVAL_TOP_K": "0", "LLM_API_KEY": "ke\u00fd-hidden"}
    code, _, output = report(doctor_cli, env)
    assert code == 1
    for name in ("PORT", "RETRIEVAL_TOP_K", "LLM_API_KEY"):
        assert re.search(rf"^fail Options: {name}: ", output, re.MULTILINE)
    assert "hidden" not in output
    assert "many" not in output


def test_a_name_in_the_env_file_that_no_option_has_is_told(data_dir: Path, doctor_cli: Cli) -> None:
    home = doctor_cli.config_dir.parent
    (home / ".env").write_text("LLM_MODLE=x\nLLM_API_KEY=sk-hidden\n")
    (home / ".env").chmod(0o644)
    code, found, output = report(doctor_cli, environment(data_dir))
    assert code == 0
    assert "LLM_MODLE is no option; do you mean LLM_MODEL?" in output
    assert "type: chmod 600 .env" in output
    assert "hidden" not in output
    assert found["Options"][0] == "ok"


def test_a_port_of_another_program_fails(data_dir: Path, doctor_cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        env = {"DATA_DIR": str(data_dir), "PORT": str(other.getsockname()[1])}
        other.settimeout(60)
        code, found, output = report(doctor_cli, env)
    assert code == 1
    assert found["Port"][0] == "fail"
    assert "type: citewire serve --port" in output


@pytest.fixture
async def provider() -> AsyncIterator[FakeLLM]:
    async with FakeLLM() as provider:
        yield provider


async def test_endpoints_that_are_away_or_refuse_the_key(
    data_dir: Path, database_url: URL, redis_url: str, doctor_cli: Cli, provider: FakeLLM
) -> None:
    url = database_url.render_as_string(hide_password=False)
    base = {**environment(data_dir), "DATABASE_URL": url, "JWT_SECRET_KEY": "Xk" + os.urandom(24).hex() + "Qz"}
    away = {
        "LLM_BASE_URL": "http://127.0.0.1:1/v1",
        "LLM_MODEL": "fake",
        "EMBEDDING_BASE_URL": "http://127.0.0.1:1/v1",
        "EMBEDDING_MODEL": "fake",
        "RERANK_BASE_URL": "http://127.0.0.1:1",
        "REDIS_URL": "redis://127.0.0.1:1",
        "LLM_API_KEY": "sk-hidden",
    }
    code, found, output = await asyncio.to_thread(report, doctor_cli, base | away)
    assert code == 1
    assert [found[name][0] for name in ("Chat model", "Embeddings", "Reranking")] == ["fail"] * 3
    assert found["Cache"][0] == "warn"  # it works without
    assert found["PostgreSQL"][0] == "ok"
    assert "hidden" not in output

    there = {"LLM_BASE_URL": provider.base_url, "LLM_MODEL": "fake", "REDIS_URL": redis_url, "LLM_API_KEY": "sk-hidden"}
    code, found, output = await asyncio.to_thread(report, doctor_cli, base | there)
    assert found["Chat model"][0] == "ok", output
    assert code == 0

    with refusing() as url:
        code, found, _ = await asyncio.to_thread(report, doctor_cli, base | there | {"LLM_BASE_URL": url})
    assert (code, found["Chat model"]) == (1, ("fail", f"{url} refused the key"))


class _Refusal(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def refusing() -> Iterator[str]:
    """An endpoint that takes no key."""
    with HTTPServer(("127.0.0.1", 0), _Refusal) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


async def test_an_external_database_that_does_not_answer_fails_without_its_password(
    data_dir: Path, redis_url: str, doctor_cli: Cli
) -> None:
    env = {
        **environment(data_dir),
        "DATABASE_URL": "postgresql://ada:hidden-word@127.0.0.1:1/none",
        "REDIS_URL": redis_url,
        "JWT_SECRET_KEY": "Xk" + os.urandom(24).hex() + "Qz",
    }
    code, found, output = await asyncio.to_thread(report, doctor_cli, env)
    assert code == 1
    assert found["PostgreSQL"][0] == "fail"
    assert "hidden-word" not in output


async def test_a_schema_of_a_newer_release_fails(
    data_dir: Path, database_url: URL, engine: AsyncEngine, redis_url: str, doctor_cli: Cli
) -> None:
    env = {
        **environment(data_dir),
        "DATABASE_URL": database_url.render_as_string(hide_password=False),
        "REDIS_URL": redis_url,
        "JWT_SECRET_KEY": "Xk" + os.urandom(24).hex() + "Qz",
    }
    async with engine.begin() as connection:
        head = (await connection.execute(text("select version_num from alembic_version"))).scalar_one()
        await connection.execute(text("update alembic_version set version_num = '9999'"))
    try:
        code, found, _ = await asyncio.to_thread(report, doctor_cli, env)
    finally:
        async with engine.begin() as connection:
            await connection.execute(text("update alembic_version set version_num = :head"), {"head": head})
    assert (code, found["Schema"][0]) == (1, "fail")
