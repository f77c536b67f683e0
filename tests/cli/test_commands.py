"""The commands against a real server that answers from documents alone."""

import asyncio
import json
import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import DEADLINE, PASSWORD, Cli, messages_of
from tests.knowledge.conftest import make_pdf
from tests.support.fault_proxy import FaultProxy
from tests.support.server import ServerProcess

MakeCli = Callable[[str], Cli]
VALVE = "The emergency valve of the reactor opens at 4.7 bar and is painted red."


@pytest.fixture
def manual(tmp_path: Path) -> Path:
    """30 pages; the valve is on page 17."""
    pages = [f"Chapter {n}. Pump number {n} is calibrated every {n + 3} days by the workshop." for n in range(1, 31)]
    pages[16] = f"Chapter 17. {VALVE}"
    path = tmp_path / "manual.pdf"
    path.write_bytes(make_pdf(pages))
    return path


def test_login_keeps_server_and_token_in_a_file_of_ones_own(server: ServerProcess, make_cli: MakeCli) -> None:
    cli = make_cli(server.url)
    cli.register("keeper")
    path = cli.config_dir / "credentials.json"
    saved = json.loads(path.read_bytes())
    assert saved["url"] == server.url
    assert path.stat().st_mode & 0o777 == 0o600
    assert cli.config_dir.stat().st_mode & 0o777 == 0o700
    assert os.listdir(cli.config_dir) == ["credentials.json"]
    answer = httpx.get(f"{server.url}/auth/me", headers={"Authorization": f"Bearer {saved['token']}"})
    assert answer.json()["username"] == "keeper"
    del cli.env["CITEWIRE_URL"]  # the file remembers it
    again = cli.run("login", "--username", "keeper", "--password-stdin", stdin=PASSWORD)
    assert again.returncode == 0
    assert f"Signed in to {server.url} as keeper" in again.stdout
    assert json.loads(path.read_bytes())["token"] not in again.stdout + again.stderr


def test_print_token_prints_the_token_alone(cli: Cli, server: ServerProcess) -> None:
    name = "printer"
    done = cli.run(
        "login", "--register", "--print-token", "--username", name, "--password-stdin", stdin=PASSWORD + "\n"
    )
    assert done.returncode == 0
    answer = httpx.get(f"{server.url}/auth/me", headers={"Authorization": f"Bearer {done.stdout.strip()}"})
    assert answer.json()["username"] == name
    assert done.stdout.strip() not in done.stderr


def test_a_wrong_password_is_told_as_such(cli: Cli) -> None:
    before = (cli.config_dir / "credentials.json").read_bytes()
    done = cli.run("login", "--username", "nobody-here", "--password-stdin", stdin="wrong password\n")
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.fullmatch(r"citewire: .+ \(unauthorized\)\n", done.stderr)
    assert "citewire login" not in done.stderr
    assert (cli.config_dir / "credentials.json").read_bytes() == before


def test_the_password_is_asked_for_and_not_shown(server: ServerProcess, make_cli: MakeCli) -> None:
    cli = make_cli(server.url)
    outside, inside = pty.openpty()
    process = subprocess.Popen(
        [*cli.command, "login", "--register"],
        cwd=cli.config_dir.parent,
        env=cli.env,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
    )
    os.close(inside)
    seen = ""
    for prompt, reply in (
        ("Username: ", "typist"),
        ("Password: ", PASSWORD),
        ("Repeat for confirmation: ", PASSWORD),
        ("Signed in", ""),
    ):
        while prompt not in seen:
            seen += os.read(outside, 4096).decode()
        if reply:
            os.write(outside, f"{reply}\n".encode())
    assert process.wait(DEADLINE) == 0
    os.close(outside)
    assert "typist" in seen
    assert PASSWORD not in seen


def test_without_a_terminal_the_password_comes_from_standard_input_only(
    server: ServerProcess, make_cli: MakeCli
) -> None:
    cli = make_cli(server.url)
    for arguments, expected in (
        (["--username", "ada"], "citewire: no terminal to ask for the password; use --username and --password-stdin\n"),
        (["--password-stdin"], "citewire: --password-stdin needs --username\n"),
    ):
        done = cli.run("login", *arguments, stdin=PASSWORD)
        assert (done.returncode, done.stderr) == (1, expected)


def test_ingest_says_for_every_file_what_became_of_it(cli: Cli, manual: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("The harbour master is called Okonkwo.\n", encoding="utf-8")
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(b"%PDF-1.7 and nothing else")
    done = cli.run("ingest", manual, broken, tmp_path / "absent.txt", notes)
    assert done.returncode == 1
    results = done.stdout.splitlines()
    assert re.fullmatch(rf"{re.escape(str(manual))}: \d+ chunks", results[0])
    assert results[1:3] == [f"{notes}: 1 chunks", ""]
    table = [line.split() for line in results[3:]]
    chunks = 1 + int(results[0].rpartition(": ")[2].split()[0])
    assert table[:2] == [["result", "files", "chunks"], ["ready", "2", str(chunks)]]
    assert table[2:] == [["parse_failed", "1"], ["unreadable", "1"]]
    complaints = done.stderr.splitlines()
    assert complaints[0].startswith(f"citewire: {broken}: parse_failed: ")
    assert complaints[1:] == [f"citewire: {tmp_path / 'absent.txt'}: unreadable: No such file or directory"]
    assert cli.run("ingest", notes, "--private").returncode == 0


def test_visibility_is_passed_on(cli: Cli, server: ServerProcess, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("The harbour master is called Okonkwo.\n", encoding="utf-8")
    # Every install has one admin account first; this one is not it, unless this test alone is run.
    token = cli.token
    headers = {"Authorization": f"Bearer {token}"}
    admin = httpx.get(f"{server.url}/auth/me", headers=headers).json()["role"] == "admin"
    done = cli.run("ingest", "--shared", notes)
    if admin:
        assert done.returncode == 0
    else:
        assert done.returncode == 1
        assert done.stderr.startswith(f"citewire: {notes}: forbidden: ")
    assert cli.run("ingest", "--private", notes).returncode == 0
    found = httpx.get(f"{server.url}/documents", headers=headers).json()["documents"]
    assert sorted(item["visibility"] for item in found) == (["private", "shared"] if admin else ["private"])


def test_ask_shows_steps_answer_and_the_page_of_the_source(cli: Cli, manual: Path) -> None:
    assert cli.run("ingest", "--private", manual).returncode == 0
    done = cli.run("ask", "At what pressure does the emergency valve of the reactor open?")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "Question received" in lines[0]
    assert any("manual.pdf" in line for line in lines[1 : lines.index("The documents say:")])
    assert any(VALVE in line and line.endswith("[1]") for line in lines)
    assert lines[lines.index("Sources") + 1] == f'[1] manual.pdf, page 17: "{VALVE}"'
    assert "\x1b" not in done.stdout


def test_ask_json_is_one_object_with_the_trace(cli: Cli, manual: Path, server: ServerProcess) -> None:
    assert cli.run("ingest", "--private", manual).returncode == 0
    done = cli.run("ask", "--json", "--session", "s1", "At what pressure does the emergency valve open?")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert answer["session_id"] == "s1"
    assert answer["status"] == "completed"
    assert VALVE in answer["response"]
    assert [(item["filename"], item["page_number"]) for item in answer["citations"]] == [("manual.pdf", 17)]
    assert answer["rag_trace"]["retrieval_stage"] == "initial"
    assert answer["rag_trace"]["retrieved_chunks"][0]["filename"] == "manual.pdf"
    assert len(answer["steps"]) >= 3
    token = cli.token
    stored = httpx.get(f"{server.url}/sessions/s1", headers={"Authorization": f"Bearer {token}"}).json()["messages"]
    assert stored[-1]["content"] == answer["response"]


def test_a_chinese_text_is_answered_with_its_words(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "港口手册.txt"
    path.write_text(
        "港口手册。\n\n应急阀门在四点七巴时打开，并涂成红色。\n\n仓库每天早上八点开门。\n", encoding="utf-8"
    )
    assert cli.run("ingest", "--private", path).returncode == 0
    done = cli.run("ask", "应急阀门在多少巴时打开？")
    assert (done.returncode, done.stderr) == (0, "")
    sources = done.stdout.partition("\nSources\n")[2].splitlines()
    assert sources[0].startswith("[1] 港口手册.txt")
    assert "应急阀门在四点七巴时打开" in sources[0]


def test_no_text_from_the_server_steers_the_terminal(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "evil.txt"
    text = "The lighthouse keeper \u202eis called [bold]Ygritte[/bold] :smile:.\n"
    path.write_text(text, encoding="utf-8")
    assert cli.run("ingest", "--private", path).returncode == 0
    question = "What is the\x1b[m lighthouse\u009bm keeper called?\x07"  # comes back in a step
    done = cli.run("ask", question, env={"FORCE_COLOR": "1", "TERM": "xterm-256color"})
    assert done.returncode == 0
    assert done.stdout.count("The lighthouse keeper is called [bold]Ygritte[/bold] :smile:") == 2  # answer and source
    assert "What is the lighthouse keeper called?" in done.stdout
    as_json = cli.run("ask", "--json", question)
    assert question in [step["detail"] for step in json.loads(as_json.stdout)["steps"]]
    for output in (done.stdout.replace("\x1b[2m", "").replace("\x1b[0m", ""), as_json.stdout):
        assert not set("\u202e\x1b\u009b\x07") & set(output)


def test_errors_are_one_line(cli: Cli, server: ServerProcess) -> None:
    token = cli.token
    gone = {"CITEWIRE_URL": "http://127.0.0.1:1"}
    bad = {"CITEWIRE_TOKEN": token[:-6] + "AAAAAA"}
    none = {"CITEWIRE_CONFIG_DIR": str(cli.config_dir / "empty")}
    for arguments, env, pattern in (
        (("ask", "hello"), gone, r"no server answers at http://127\.0\.0\.1:1; start it with: make run"),
        (("ingest", __file__), gone, r"no server answers at .*make run"),
        (("ask", "hello"), {"CITEWIRE_URL": "ftp://x"}, r"the server's address must begin with http:// or https://"),
        (("ask", "hello"), bad, r"the login is no longer valid; sign in again: citewire login \(unauthorized\)"),
        (("ingest", __file__, __file__), bad, r"the login is no longer valid; .* \(unauthorized\)"),
        (("ask", "hello"), {"CITEWIRE_TOKEN": "kana rie\u00e9"}, r"the token holds characters .*citewire login"),
        (("ask", "hello"), none, r"not signed in; sign in first: citewire login \(unauthorized\)"),
        (("ask", "  "), {}, r".*blank.* \(validation_error\)"),
        (("ask", "--session", "no such id", "hello"), {}, r".* \(validation_error\)"),
        (("ask", "hello"), {"CITEWIRE_URL": f"{server.url}/elsewhere"}, r".* \(\w+\)"),
    ):
        done = cli.run(*arguments, env=env)
        assert (done.returncode, done.stdout) == (1, ""), (arguments, env)
        assert re.fullmatch(rf"citewire: {pattern}\n", done.stderr), done.stderr
        assert token not in done.stderr
        assert "rie\u00e9" not in done.stderr


async def test_a_question_whose_answer_was_lost_is_asked_once(cli: Cli, server: ServerProcess) -> None:
    async with FaultProxy(("127.0.0.1", server.port)) as proxy:
        rule = proxy.on_bytes(b"POST /chat/stream", "cut_reply")
        token = cli.token
        env = {"CITEWIRE_URL": f"http://127.0.0.1:{proxy.port}", "CITEWIRE_TOKEN": token}
        done = await asyncio.to_thread(
            cli.run, "ask", "--json", "--session", "lost", "Who keeps the lighthouse?", env=env
        )
    assert rule.hits == 1
    assert done.returncode == 0, done.stderr
    assert done.stderr == "connection lost, resumed\n"
    stored = await messages_of(server, token, "lost")
    assert [message["type"] for message in stored] == ["human", "ai"]
    assert stored[1]["content"] == json.loads(done.stdout)["response"]
