"""Files of a conversation at the terminal, against a real server and a scripted model."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.cli.conftest import Cli
from tests.cli.test_chat import MakeCli, talk
from tests.support.fake_llm import FakeLLM, text, tool_call
from tests.support.server import ServerProcess


def test_a_file_is_attached_asked_about_listed_and_taken_out(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "my notes.txt").write_text("The harbour master is called Okonkwo.\n", encoding="utf-8")
    code, shown, complaints = talk(
        cli,
        "/files",
        f"/attach '{tmp_path / 'my notes.txt'}'",
        "What is the harbour master called?",
        "/files",
        "/detach my notes.txt",
        "/files",
        options=("--session", "files"),
    )
    assert (code, complaints) == (0, "")
    line = "my notes.txt (text/plain, 38 bytes)"
    assert f"attached: {line}" in shown
    assert "Okonkwo" in shown.replace("What is the harbour master called?", "")
    assert f"     {line}" in shown
    assert "removed: my notes.txt" in shown
    assert shown.count("no files in this conversation") == 2


def test_what_cannot_be_attached_or_saved_is_one_line(cli: Cli, tmp_path: Path) -> None:
    code, _, complaints = talk(
        cli,
        "/attach",
        f"/attach {tmp_path / 'absent'}",
        "/attach 'open",
        "/save",
        "/save 1",
        "/detach",
        "/detach a/../b",
    )
    assert code == 0
    assert complaints.splitlines() == [
        "citewire: /attach FILE… (a name with spaces in quotes)",
        f"citewire: {tmp_path / 'absent'}: No such file or directory",
        "citewire: /attach FILE… (a name with spaces in quotes)",
        "citewire: /save NUMBER|NAME [FOLDER]; /files lists what there is",
        "citewire: /save NUMBER|NAME [FOLDER]; /files lists what there is",
        "citewire: /detach NAME",
        "citewire: Not found (not_found)",
    ]


@pytest.fixture
async def llm() -> AsyncIterator[FakeLLM]:
    async with FakeLLM() as made:
        yield made


async def test_what_the_assistant_made_is_shown_and_saved(
    llm: FakeLLM, make_cli: MakeCli, data_dir: Path, database_url: URL, redis_url: str, tmp_path: Path
) -> None:
    env = {"LLM_BASE_URL": llm.base_url, "LLM_MODEL": "fake", "LLM_API_KEY": "none", "MODEL_TITLES": "false"}
    (tmp_path / "sales.csv").write_text("price\n3\n4\n")
    (tmp_path / "saved").mkdir()
    llm.script(
        tool_call(
            "run_python",
            {"code": "print(sum(int(x) for x in open('/mnt/user-data/uploads/sales.csv').read().split()[1:]))"},
        ),
        tool_call("write_file", {"path": "outputs/report.md", "content": "# 7\n"}),
        tool_call("present_files", {"paths": ["outputs/report.md"]}),
        text("The sum is 7."),
    )
    async with ServerProcess(data_dir, database_url=database_url, redis_url=redis_url, env=env) as server:
        cli = make_cli(server.url)
        await asyncio.to_thread(cli.register, "files")
        lines = (f"/attach {tmp_path / 'sales.csv'}", "Sum?", "/files", "/save 1 saved", "/save report.md saved")
        code, shown, complaints = await asyncio.to_thread(talk, cli, *lines)
    assert (code, complaints) == (0, "")
    assert "Files: report.md; /files and /save in citewire chat" in shown
    assert re.search(r"^  1\. report\.md \(text/markdown, 4 bytes\)$", shown, re.MULTILINE)
    assert (tmp_path / "saved" / "report.md").read_text() == "# 7\n"
    assert (tmp_path / "saved" / "2-report.md").read_text() == "# 7\n"
