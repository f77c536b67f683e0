"""The path of an answer, from a real server."""

import json
import re
from pathlib import Path

from tests.cli.conftest import Cli


def test_the_path_of_an_answer_is_shown_as_it_was_stored(cli: Cli, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("The harbour master is called Okonkwo.\n", encoding="utf-8")
    assert cli.run("ingest", "--private", notes).returncode == 0
    asked = cli.run("ask", "What is the harbour master called?")
    message_id = re.findall(r"citewire trace (\S+)", asked.stdout)[0]
    done = cli.run("trace", message_id)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip(" │├└─") for line in done.stdout.splitlines()]
    stored = json.loads(cli.run("trace", "--json", message_id).stdout)
    trace = stored["rag_trace"]
    assert stored["id"] == message_id
    assert lines[0].startswith(f"Answer {message_id} · completed · {stored['timestamp']}")
    assert any(re.fullmatch(r"\d+ ms  Question received", line) for line in lines)
    assert "Question · What is the harbour master called? · first search" in lines
    recall = next(line for line in lines if line.startswith("Recall"))
    assert recall.startswith(f"Recall · {trace['recall_count']} passages · of {trace['candidate_k']} wanted")
    assert f"Evidence · {len(trace['retrieved_chunks'])} passages" in lines
    assert '[1] notes.txt: "The harbour master is called Okonkwo."' in lines
    assert any(line.startswith("[1] notes.txt · score ") for line in lines)
    foreign = cli.run("trace", "01a22e16-e93e-7153-b36b-70e88f1c8269")
    assert (foreign.returncode, foreign.stdout) == (1, "")
    assert foreign.stderr == "citewire: you have no answer with the id 01a22e16-e93e-7153-b36b-70e88f1c8269\n"
