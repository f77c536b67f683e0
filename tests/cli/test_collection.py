"""``citewire collection``, and ``--collection`` of ask and chat, against a real server."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.support.server import ServerProcess

QUESTION = "What is the colour of the north valve?"


@pytest.fixture
def documents(cli: Cli, tmp_path: Path) -> tuple[str, str]:
    """The names of two documents in the library that answer the same question differently."""
    names = ("summer.txt", "winter.txt")
    for name, colour in zip(names, ("vermilion", "turquoise"), strict=True):
        (tmp_path / name).write_text(f"The colour of the north valve is {colour}.")
    done = cli.run("ingest", *(tmp_path / name for name in names), "--private")
    assert done.returncode == 0, done.stderr
    return names


def told(cli: Cli, *arguments: object) -> str:
    """What a command that succeeds prints."""
    done = cli.run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(cli: Cli, *arguments: object) -> str:
    """The one line of a command that fails with code 1."""
    done = cli.run(*arguments)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    return line


def test_a_question_is_asked_of_a_collection_alone(cli: Cli, documents: tuple[str, str]) -> None:
    summer, winter = documents
    assert told(cli, "collection", "list") == "no collections yet\n"
    assert told(cli, "collection", "create", "cold season") == "made: cold season\n"
    assert told(cli, "collection", "create", "both") == "made: both\n"
    assert told(cli, "collection", "add", "cold season", winter) == "cold season: 1 documents\n"
    assert told(cli, "collection", "add", "both", summer, winter, winter) == "both: 2 documents\n"
    assert told(cli, "collection", "list") == "    2  both\n    1  cold season\n"

    answer = told(cli, "ask", "--collection", "cold season", QUESTION)
    assert "turquoise" in answer
    assert "vermilion" not in answer
    chat = cli.run("chat", "--new", "--collection", "cold season", stdin=QUESTION + "\n")
    assert "turquoise" in chat.stdout
    assert "vermilion" not in chat.stdout

    assert told(cli, "collection", "remove", "both", winter) == "both: 1 documents\n"
    assert "Passages recalled: 1" in told(cli, "ask", "--collection", "both", QUESTION)
    answer = told(cli, "ask", "--collection", "both", "--collection", "cold season", QUESTION)
    assert (
        "Passages recalled: 2" in answer
    )  # two documents that contradict each other: what is quoted is not tried here

    assert refused(cli, "collection", "delete", "both") == ("citewire: no terminal to ask for confirmation; use --yes")
    assert told(cli, "collection", "delete", "both", "--yes") == "deleted: both\n"
    assert told(cli, "collection", "list") == "    1  cold season\n"


def test_what_is_wrong_is_one_line(cli: Cli, documents: tuple[str, str]) -> None:
    told(cli, "collection", "create", "mine")
    assert refused(cli, "collection", "create", "mine").endswith("(name_taken)")
    assert refused(cli, "collection", "add", "nothing", "summer.txt") == (
        "citewire: you have no collection nothing (not_found)"
    )
    assert refused(cli, "collection", "add", "mine", "summer.txt", "autumn.txt") == (
        "citewire: there is no document autumn.txt in the library"
    )
    assert refused(cli, "collection", "remove", "mine", "summer.txt") == (
        "citewire: there is no document summer.txt in the collection"
    )
    assert told(cli, "collection", "list") == "    0  mine\n"
    assert refused(cli, "ask", "--collection", "nothing", QUESTION).endswith("(not_found)")


def test_without_a_login_it_says_so(server: ServerProcess, tmp_path: Path) -> None:
    assert "citewire login" in refused(Cli(tmp_path / "other", server.url), "collection", "list")
