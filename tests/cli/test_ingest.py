"""``citewire ingest`` of a folder: again, after Ctrl-C, and while the server is killed."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import URL

from tests.cli.conftest import DEADLINE, Cli
from tests.support.server import ServerProcess

MakeCli = Callable[[str], Cli]
FILES = 16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Notes, each long enough to take a while."""
    root = tmp_path / "notes"
    root.mkdir()
    for number in range(FILES):
        text = "".join(f"# Part {part}\n\nPump {number} delivers {part} litres.\n\n" for part in range(8))
        (root / f"note{number:02}.md").write_text(text, encoding="utf-8")
    return root


def library(server: ServerProcess, cli: Cli) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {cli.token}"}
    found = httpx.get(f"{server.url}/documents", headers=headers).json()["documents"]
    return sorted(found, key=lambda one: one["filename"])


def results(output: str) -> dict[str, str]:
    """The table: files by result."""
    rows = [line.split() for line in output.partition("result")[2].splitlines()[1:]]
    return {row[0]: row[1] for row in rows if row}


def test_again_only_what_changed_is_made_anew(cli: Cli, server: ServerProcess, folder: Path) -> None:
    first = cli.run("ingest", "--private", folder)
    assert (first.returncode, results(first.stdout)) == (0, {"ready": str(FILES)})
    before = library(server, cli)
    (folder / "note03.md").write_text("The pump is gone.\n", encoding="utf-8")
    again = cli.run("ingest", "--private", folder)
    assert (again.returncode, results(again.stdout)) == (0, {"ready": "1", "unchanged": str(FILES - 1)})
    assert again.stdout.splitlines()[:4] == [
        *(f"{folder}/note{number:02}.md: unchanged" for number in range(3)),
        f"{folder}/note03.md: 1 chunks",
    ]
    assert [one["document_id"] for one in library(server, cli)] == [one["document_id"] for one in before]


def test_a_folder_is_chosen_from_by_globs(cli: Cli, server: ServerProcess, folder: Path) -> None:
    done = cli.run("ingest", "--private", "--include", "note0*", "--exclude", "*[4-9].md", folder)
    assert (done.returncode, results(done.stdout)) == (0, {"ready": "4"})
    assert [one["filename"] for one in library(server, cli)] == [f"note0{number}.md" for number in range(4)]


async def _first_line(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE):
        assert await process.stdout.readline()


async def test_after_ctrl_c_the_next_run_finishes(cli: Cli, server: ServerProcess, folder: Path) -> None:
    process = await cli.start("ingest", "--private", folder)
    await _first_line(process)
    process.send_signal(signal.SIGINT)
    _, complaints = await asyncio.wait_for(process.communicate(), DEADLINE)
    assert process.returncode == 130
    assert complaints.decode().startswith("citewire: stopped; ")
    assert 1 <= len(library(server, cli)) < FILES
    done = await asyncio.to_thread(cli.run, "ingest", "--private", folder)
    counted = results(done.stdout)
    assert (done.returncode, sum(map(int, counted.values()))) == (0, FILES), done.stderr
    assert int(counted["unchanged"]) >= 1
    found = library(server, cli)
    assert [(one["filename"], one["status"]) for one in found] == [
        (f"note{number:02}.md", "ready") for number in range(FILES)
    ]


async def test_b16_a_server_that_is_killed_and_started_again_is_waited_for(
    data_dir: Path, database_url: URL, redis_url: str, make_cli: MakeCli, folder: Path
) -> None:
    async with ServerProcess(data_dir, database_url=database_url, redis_url=redis_url) as server:
        cli = make_cli(server.url)
        await asyncio.to_thread(cli.register, "ada")
        process = await cli.start("ingest", "--private", folder)
        await _first_line(process)
        await server.kill9()
        await server.start()
        output, complaints = await asyncio.wait_for(process.communicate(), DEADLINE)
        assert process.returncode == 0, complaints
        assert sum(map(int, results(output.decode()).values())) == FILES
        found = library(server, cli)
        assert [(one["filename"], one["status"]) for one in found] == [
            (f"note{number:02}.md", "ready") for number in range(FILES)
        ]
