"""A conversation at the terminal, against a real server."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import URL

from tests.cli.conftest import DEADLINE, Cli, messages_of
from tests.cli.test_interruptions import begun, read_until
from tests.support.fake_llm import FakeLLM
from tests.support.server import ServerProcess

MakeCli = Callable[[str], Cli]


def talk(cli: Cli, *lines: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
    done = cli.run("chat", *options, stdin="".join(f"{line}\n" for line in lines))
    return done.returncode, done.stdout, done.stderr


def test_sessions_are_made_listed_renamed_entered_and_deleted(cli: Cli, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("The harbour master is called Okonkwo.\n", encoding="utf-8")
    assert cli.run("ingest", "--private", notes).returncode == 0
    code, shown, complaints = talk(
        cli,
        "What is the harbour master called?",
        "/rename The  harbour",
        "/new second",
        "Where is the harbour?",
        "/sessions",
        "/switch 2",
        "/sources",
        "/delete second",
        "/delete",
        "/sessions",
        "/quit",
        "never read",
        options=("--session", "first"),
    )
    assert (code, complaints) == (0, "")
    assert "New conversation first" in shown
    source = '[1] notes.txt: "The harbour master is called Okonkwo."'
    assert "renamed: The harbour" in shown
    assert re.search(r"^\*  1\. [-\d]+ [:\d]+  Where is the harbour\?$", shown, re.MULTILINE)
    assert re.search(r"^   2\. [-\d]+ [:\d]+  The harbour$", shown, re.MULTILINE)
    entered = shown.partition("\nConversation first\n")[2]
    assert entered.startswith("› What is the harbour master called?\n")
    assert entered.count(source) == 2  # with the history, and by /sources
    assert "deleted: second" in entered
    assert "deleted: first" in entered
    assert entered.rstrip().endswith("no conversations yet")
    assert "never read" not in shown


PLANS = """# Plans

## Starter
Support answers by e-mail within two working days.

## Business
Support answers by phone within four hours.
"""
ASKED = "How fast does support answer?"


def test_a_question_back_is_shown_answered_by_number_and_dismissed(cli: Cli, tmp_path: Path) -> None:
    plans = tmp_path / "plans.md"
    plans.write_text(PLANS, encoding="utf-8")
    assert cli.run("ingest", "--private", plans).returncode == 0
    code, shown, complaints = talk(cli, ASKED, "2", "/dismiss", "/new other", ASKED, options=("--session", "asked"))
    assert (code, complaints) == (0, "")
    number = re.search(r"^(\d)\. Business$", shown, re.MULTILINE)
    assert number is not None
    wanted = "four hours" if number[1] == "2" else "two working days"
    assert wanted in shown
    assert "no question waits for an answer" in shown
    code, shown, complaints = talk(cli, "/dismiss", "Who is the plumber of Atlantis?")
    assert (code, complaints) == (0, "")
    assert shown.count("1. ") == 1  # as the question that waits, not as a message too
    assert "the question waits no longer" in shown
    done = cli.run("ask", ASKED, "--session", "third")
    assert "Answer it: citewire ask --session third NUMBER|TEXT" in done.stdout
    answered = cli.run("ask", number[1], "--session", "third")
    assert (answered.returncode, "four hours" in answered.stdout) == (0, True)


def test_without_options_the_newest_conversation_goes_on(cli: Cli) -> None:
    assert talk(cli, "Who keeps the lighthouse?", options=("--session", "kept"))[0] == 0
    code, shown, _ = talk(cli)
    assert code == 0
    assert "Conversation kept\n› Who keeps the lighthouse?" in shown
    assert "New conversation cli-" in talk(cli, options=("--new",))[1]


def test_what_cannot_be_done_is_one_line_and_the_chat_goes_on(cli: Cli) -> None:
    code, shown, complaints = talk(cli, "/bogus", "/switch ../x", "/rename", "/new a b", "/help", "//help me")
    assert code == 0
    assert "/sessions " in shown
    assert "/help me" in shown  # the question, in a step
    assert complaints.splitlines() == [
        "citewire: there is no command /bogus; /help lists them",
        "citewire: name a conversation by its number in /sessions, or by its id",
        "citewire: /rename TITLE",
        "citewire: an id has letters, digits and . _ : - only, at most 120",
    ]


def test_without_a_login_it_ends_with_one_line(server: ServerProcess, make_cli: MakeCli) -> None:
    code, shown, complaints = talk(make_cli(server.url), "hello")
    assert (code, shown) == (1, "")
    assert complaints == "citewire: not signed in; sign in first: citewire login (unauthorized)\n"


@pytest.fixture
async def slow_server(data_dir: Path, database_url: URL, redis_url: str) -> AsyncIterator[ServerProcess]:
    """A model that writes a word every tenth of a second."""
    async with FakeLLM(token_delay=0.1, tokens=100) as provider:
        env = {"LLM_BASE_URL": provider.base_url, "LLM_MODEL": "fake", "LLM_API_KEY": "none"}
        async with ServerProcess(data_dir, database_url=database_url, redis_url=redis_url, env=env) as server:
            yield server


async def start(cli: Cli, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *cli.command,
        "chat",
        *arguments,
        cwd=cli.config_dir.parent,
        env=cli.env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(slow_server: ServerProcess, make_cli: MakeCli) -> None:
    cli = make_cli(slow_server.url)
    await asyncio.to_thread(cli.register, "ada")
    process = await start(cli, "--session", "s1")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"Who keeps the lighthouse?\n")
    await process.stdin.drain()
    await read_until(process.stdout, begun)
    process.send_signal(signal.SIGINT)
    shown = await read_until(process.stdout, lambda text: "how it was found" in text)
    assert "stopped" in shown
    assert process.returncode is None
    rest, complaints = await asyncio.wait_for(process.communicate(b"/rename still here\n"), DEADLINE)
    assert process.returncode == 0
    assert "renamed: still here" in rest.decode()
    assert complaints.decode() == "stopping …\n"
    ai = (await messages_of(slow_server, cli.token, "s1"))[1]
    assert ai["status"] == "stopped"
    assert ai["content"]


async def test_a_running_answer_is_taken_up_on_entry(slow_server: ServerProcess, make_cli: MakeCli) -> None:
    cli = make_cli(slow_server.url)
    await asyncio.to_thread(cli.register, "ada")
    first = await start(cli, "--session", "s1")
    assert first.stdin is not None
    assert first.stdout is not None
    first.stdin.write(b"Who keeps the lighthouse?\n")
    await first.stdin.drain()
    await read_until(first.stdout, begun)
    first.kill()
    await first.wait()
    second = await start(cli)
    shown, complaints = await asyncio.wait_for(second.communicate(b"/quit\n"), DEADLINE)
    assert (second.returncode, complaints) == (0, b"")
    human, ai = await messages_of(slow_server, cli.token, "s1")
    assert ai["status"] == "completed"
    assert f"› {human['content']}" in shown.decode()
    assert shown.decode().count(ai["content"]) == 1
    assert shown.decode().count("Question received") == 1
