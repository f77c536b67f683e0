"""``citewire eval`` as a process: right figures, one line for what is wrong, and nothing left behind."""

import asyncio
import json
import math
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.infra.embedded.support import processes_of
from tests.support.waiting import until

PASSAGES = [
    {"id": "pump", "text": "The pump PPR-9087 delivers 400 litres an hour. It stands in the northern cellar."},
    {"id": "valve", "text": "The valve opens at six in the morning. The caretaker checks its gasket on Mondays."},
    {"id": "lamp", "text": "The lamp in the staircase burns until midnight. Its bulb has forty watts."},
    {"id": "gate", "text": "The gate is painted green. Visitors ring the bell beside it."},
]
QUESTIONS: list[dict[str, Any]] = [
    # words: "ppr-9087" is in one passage only, so of two right ones the word arm finds the better one
    {"id": "graded", "question": "PPR-9087", "relevant": {"pump": 2, "valve": 1}, "answer": "400 litres"},
    # words: "gasket" leads to the wrong passage only
    {"id": "misled", "question": "gasket", "passage_id": "lamp"},
    {
        "id": "plain",
        "question": "How many watts has the bulb of the lamp?",
        "passage_id": "lamp",
        "answer": "forty",
    },
]
PATIENCE = 150.0
"""Seconds for a start with a new database, and for an end, on a machine that does much else."""
GRADED = 2 / (2 + 1 / math.log2(3))


class Eval:
    """The command with files of its own, and a directory for all it stores."""

    def __init__(self, cli: Cli, directory: Path) -> None:
        self.cli = cli
        self.directory = directory
        cli.env["TMPDIR"] = str(directory)
        cli.config_dir.mkdir(parents=True)
        self.files: list[object] = []
        for name, items in (("passages", PASSAGES), ("questions", QUESTIONS)):
            path = cli.config_dir.parent / f"{name}.jsonl"
            path.write_text("".join(json.dumps(item) + "\n" for item in items))
            self.files += [f"--{name}", path]

    def figures(self, what: str, *options: object) -> Any:
        """The JSON that the command prints."""
        done = self.cli.run("eval", what, *self.files, *options, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    def left(self) -> tuple[list[str], list[int]]:
        """Files and processes that are still there."""
        return os.listdir(self.directory), processes_of(self.directory)


@pytest.fixture
def evaluation(make_cli: Callable[[str], Cli], data_dir: Path) -> Eval:
    return Eval(make_cli("http://127.0.0.1:9"), data_dir)


def test_retrieval_has_the_figures_of_every_arm(evaluation: Eval) -> None:
    found = evaluation.figures("retrieval")
    assert (found["questions"], found["passages"], list(found["arms"])) == (
        3,
        4,
        ["dense", "sparse", "hybrid", "hybrid_merge"],
    )
    sparse = {name: value for name, value in found["arms"]["sparse"].items() if "ms" not in name}
    means = {"ndcg@10": (GRADED + 0 + 1) / 3, "recall@5": (0.5 + 0 + 1) / 3, "mrr": 2 / 3}
    assert sparse == pytest.approx(means, abs=1e-4)
    for arm, figures in found["arms"].items():
        assert figures["recall@5"] == 1 or arm == "sparse", "four passages, all of which a vector search finds"
        assert figures["ms"] > 0
        assert set(figures["stages_ms"]) >= {"search", "load"}
        assert ("embed" in figures["stages_ms"]) == (arm != "sparse")
        assert ("merge" in figures["stages_ms"]) == (arm == "hybrid_merge")
    assert evaluation.left() == ([], [])


def test_answers_are_compared_with_what_is_expected(evaluation: Eval) -> None:
    found = evaluation.figures("answers", "--sample", 1)
    assert (found["questions"], found["passages"], found["failed"]) == (1, 4, {})
    assert (found["contains"], found["answered"], found["asked_back"]) == (1.0, 1.0, 0.0)
    assert found["citation_precision"] == 1.0
    assert (found["removed"]["questions"], found["removed"]["passages"]) == (1, 2)
    assert found["removed"]["not_answered"] == 1.0, "the identifier is in no passage that is left"
    assert evaluation.left() == ([], [])


def test_a_table_for_people(evaluation: Eval) -> None:
    done = evaluation.cli.run("eval", "retrieval", *evaluation.files, "--sample", 1)
    assert (done.returncode, done.stderr) == (0, "")
    title, _, heading, *rows = done.stdout.splitlines()
    assert (title, heading.split()[:5]) == ("questions: 1, passages: 4", ["arm", "nDCG@10", "recall@5", "MRR", "ms"])
    assert [row.split()[0] for row in rows] == ["dense", "sparse", "hybrid", "hybrid_merge"]
    assert rows[1].split()[1:4] == [f"{GRADED:.3f}", "0.500", "1.000"]


@pytest.mark.parametrize("what", ["retrieval", "answers"])
def test_what_is_wrong_with_a_file_is_one_line(evaluation: Eval, what: str) -> None:
    questions = Path(str(evaluation.files[3]))
    questions.write_text(json.dumps(QUESTIONS[0]) + "\nnot json\n")
    done = evaluation.cli.run("eval", what, *evaluation.files)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "questions.jsonl:2: Invalid JSON" in done.stderr
    assert evaluation.left() == ([], [])


@pytest.mark.timeout(2 * PATIENCE + 30)
async def test_ctrl_c_takes_everything_along(evaluation: Eval) -> None:
    process = await _running(evaluation)
    process.send_signal(signal.SIGINT)
    _, stderr = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert (process.returncode, stderr.decode()) == (130, "citewire: stopped\n")
    assert evaluation.left() == ([], [])


@pytest.mark.timeout(2 * PATIENCE + 30)
async def test_a_database_that_is_killed_ends_it_with_one_line(evaluation: Eval) -> None:
    process = await _running(evaluation)
    for pid in processes_of(evaluation.directory):
        os.kill(pid, signal.SIGKILL)
    _, stderr = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert (process.returncode, stderr.decode().count("\n")) == (1, 1), stderr.decode()
    assert "storage_unavailable" in stderr.decode()
    assert evaluation.left() == ([], [])


async def _running(evaluation: Eval) -> asyncio.subprocess.Process:
    """The command with far more passages than it can store meanwhile, and its database running."""
    passages = Path(str(evaluation.files[1]))
    more = [{"id": f"more-{number}", "text": f"Room {number} is on floor {number % 9}."} for number in range(2_000)]
    with passages.open("a") as file:
        file.writelines(json.dumps(item) + "\n" for item in more)
    process = await evaluation.cli.start("eval", "retrieval", *evaluation.files)

    def stores() -> bool:
        assert process.returncode is None, "it ended before anything was stored"
        return any(evaluation.directory.glob("*/data/documents/*/*"))

    try:
        await until(stores, PATIENCE)
    except BaseException:
        for pid in {process.pid, *processes_of(evaluation.directory)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.communicate()
        raise
    return process


def test_turns_that_fail_are_counted_and_said(evaluation: Eval) -> None:
    provider = {"LLM_BASE_URL": "http://127.0.0.1:9/v1", "LLM_MODEL": "gone", "LLM_CONNECT_SECONDS": "1"}
    done = evaluation.cli.run("eval", "answers", *evaluation.files, "--sample", 1, "--json", env=provider)
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "citewire: 2 turns failed: provider_unavailable\n")
    assert (found["failed"], found["answered"], found["removed"]["not_answered"]) == (
        {"provider_unavailable": 2},
        0.0,
        0.0,
    )
    assert evaluation.left() == ([], [])
