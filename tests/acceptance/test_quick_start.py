"""What the README shows, as a new user would type it: quick start, recording, calls of the API; the table of routes."""

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fpdf import FPDF

from tests.conftest import open_directory
from tests.support.server import ROOT, ServerProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")
QUICK_START = "<!-- quick start: executed by tests/acceptance/test_quick_start.py -->\n```sh\n"
RECORDING = "<!-- recording: compared by tests/acceptance/test_quick_start.py -->\n```console\n"
API = "<!-- API by example: executed by tests/acceptance/test_quick_start.py -->\n```sh\n"
BACK = "<!-- a question back: executed by tests/acceptance/test_quick_start.py -->\n```sh\n"
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SOME_ID = "00000000-0000-7000-8000-000000000007"
PARAMETER = re.compile(r"\{[a-z_]+\}")
ACCOUNT = {"username": "ada", "password": "correct horse battery"}
ANSWERS = {
    "Username:": ACCOUNT["username"],
    "Password: ": ACCOUNT["password"],
    "Repeat for confirmation: ": ACCOUNT["password"],
}
"""What is typed when the terminal shows this; a hidden question ends with a blank once the keyboard is listened to."""
DEADLINE_SECONDS = 100.0


def block(start: str, page: str = "README.md") -> str:
    """The text of the block of a page that begins with ``start``."""
    _, found, rest = (ROOT / page).read_text(encoding="utf-8").partition(start)
    assert found, start
    return rest.partition("```")[0]


def write_handbook(path: Path) -> None:
    """Thirty pages; page n is about pump 7 n, whose interval is 13 n hours."""
    pdf = FPDF()
    pdf.set_font("helvetica", size=12)
    for page in range(1, 31):
        pdf.add_page()
        pdf.multi_cell(
            0,
            8,
            f"Chapter {page}. About the machines of hall {page}.\n\n"
            f"The maintenance interval of pump number {page * 7} is {page * 13} hours. "
            "It is logged by the shift supervisor.",
        )
    pdf.output(str(path))


async def type_commands(commands: str, home: Path, env: dict[str, str]) -> tuple[int, str]:
    """Run ``commands`` in a shell at a terminal, answering what it asks. Gives exit code and standard output."""
    keyboard, terminal = os.openpty()
    shell = await asyncio.create_subprocess_exec(
        "bash",
        "-euc",
        commands,
        cwd=home,
        env=env,
        stdin=terminal,
        stderr=terminal,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    os.close(terminal)
    seen = ""

    def answer() -> None:
        nonlocal seen
        try:
            seen += os.read(keyboard, 4096).decode(errors="replace")
        except OSError:  # the other end is closed
            loop.remove_reader(keyboard)
            return
        for prompt, text in ANSWERS.items():
            if seen.endswith(prompt):
                seen = ""
                os.write(keyboard, text.encode() + b"\n")

    loop = asyncio.get_running_loop()
    loop.add_reader(keyboard, answer)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            output, _ = await shell.communicate()
    finally:
        loop.remove_reader(keyboard)
        os.close(keyboard)
    assert shell.returncode is not None
    return shell.returncode, output.decode() + seen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[ServerProcess]:
    """One for all of them, started as ``make run`` does."""
    data_dir = open_directory("citewire-readme-")
    try:
        async with ServerProcess(data_dir, arguments=["--sample"]) as running:
            yield running
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A clone where ``make run`` was done, with a document to ask about."""
    write_handbook(tmp_path / "handbook.pdf")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def environment(home: Path, server: ServerProcess) -> dict[str, str]:
    return {"PATH": os.defpath, "HOME": str(home), "CITEWIRE_URL": server.url, "LANG": "C.UTF-8"}


async def register(server: ServerProcess) -> None:
    """The account of the quick start, if it was not run before."""
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        assert (await client.post("/auth/register", json=ACCOUNT)).status_code in {200, 409}


async def test_the_quick_start_does_what_the_recording_shows(home: Path, server: ServerProcess) -> None:
    code, output = await type_commands(block(QUICK_START), home, environment(home, server))
    assert code == 0, output
    assert "as ada (admin)" in output
    command, _, shown = block(RECORDING).partition("\n")
    assert command.removeprefix("$ ") == block(QUICK_START).splitlines()[-1]
    assert shown in UUID.sub("…", output)


async def test_the_calls_of_the_api_answer_the_question(home: Path, server: ServerProcess) -> None:
    await register(server)
    address, calls = block(API).split("\n", 1)
    assert address == "URL=http://127.0.0.1:8000"
    script = f"URL={server.url}\n{calls}"
    code, output = await type_commands(
        script, home, {**environment(home, server), "PATH": f"{sys.prefix}/bin:{os.defpath}"}
    )
    assert code == 0, output
    uploaded, end = json.JSONDecoder().raw_decode(output)
    assert uploaded["filename"] == "handbook.pdf"
    stream, _, rest = output[end:].partition("data: [DONE]\n\n")
    events: list[dict[str, Any]] = [json.loads(line.removeprefix("data: ")) for line in stream.split("\n\n") if line]
    assert events[0]["type"] == "run_started"
    assert (events[-1]["type"], events[-1]["status"]) == ("done", "completed")
    text = "".join(event["content"] for event in events if event["type"] == "content")
    assert "“The maintenance interval of pump number 119 is 221 hours.” [1]" in text
    session, _ = json.JSONDecoder().raw_decode(rest)
    question, answer = session["messages"]
    assert question["content"] == "What is the maintenance interval of pump number 119?"
    assert answer["content"] == text
    assert [(cited["index"], cited["page_number"]) for cited in answer["citations"]] == [(1, 17)]


async def test_the_calls_of_a_question_back_are_asked_back_and_answered(home: Path, server: ServerProcess) -> None:
    await register(server)
    sign_in = block(API).split("\n\n")[0].split("\n", 1)[1]
    script = f"URL={server.url}\n{sign_in}\n{block(BACK, 'docs/api.md')}"
    code, output = await type_commands(
        script, home, {**environment(home, server), "PATH": f"{sys.prefix}/bin:{os.defpath}"}
    )
    assert code == 0, output
    answers: list[dict[str, Any]] = []
    while output:
        answer, end = json.JSONDecoder().raw_decode(output)
        answers.append(answer)
        output = output[end:].lstrip()
    _, asked, session, answered = answers
    assert asked["finish_reason"] == "clarification"
    assert sorted(asked["hitl"]["options"]) == ["Business", "Starter"]
    assert session["hitl"] == asked["hitl"]
    assert answered["rag_trace"]["hitl_resumed"] is True
    assert "four hours" in answered["response"]
    assert answered["hitl"] is None


async def test_the_table_of_routes_names_each_route(server: ServerProcess) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    named = re.findall(r"`([A-Z]+ /[^`]*)`", "".join(re.findall(r"^\|.*$", page, re.MULTILINE)))
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        paths: dict[str, dict[str, Any]] = (await client.get("/openapi.json")).json()["paths"]
    assert sorted(named) == sorted(f"{method.upper()} {path}" for path, methods in paths.items() for method in methods)


async def test_routes_without_a_token_are_those_that_the_page_says(server: ServerProcess) -> None:
    open_routes: set[str] = set()
    async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
        paths: dict[str, dict[str, Any]] = (await client.get("/openapi.json")).json()["paths"]
        for path, methods in paths.items():
            for method in methods:
                answer = await client.request(method, PARAMETER.sub(SOME_ID, path), json={})
                if answer.status_code != 401:
                    open_routes.add(f"{method.upper()} {path}")
    assert open_routes == {
        "POST /auth/register",
        "POST /auth/login",
        "GET /health/live",
        "GET /health/ready",
        "GET /metrics",
    }
