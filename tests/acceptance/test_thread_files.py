"""A conversation with files, end to end: uploads, tools, artifacts, and nothing of it for anybody else."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.running import Running, running
from tests.support.chat_client import Client
from tests.support.fake_llm import text, tool_call

pytestmark = pytest.mark.asyncio(loop_scope="module")
CSV = b"name,price\npump,3\nvalve,4\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    async with running(postgres_url, valkey_url, f"thread_files_{worker_id}") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Running) -> AsyncIterator[Running]:
    await shared.reset()
    yield shared
    await shared.check()


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Running) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


async def put(client: Client, session_id: str, *files: tuple[str, bytes]) -> list[dict[str, Any]]:
    answer = await client.http.post(f"/sessions/{session_id}/uploads", files=[("file", item) for item in files])
    assert answer.status_code == 200, answer.text
    return answer.json()["files"]


def tool_results(at: Running) -> list[str]:
    """What the tools have told the model, in the last request."""
    requests = (request.body.get("messages", []) for request in at.llm.requests)
    found = ([item for item in messages if item["role"] == "tool"] for messages in requests)
    return [message["content"] for message in [items for items in found if items][-1]]


def threads(at: Running) -> list[Path]:
    return [path for owner in (at.data_dir / "threads").iterdir() for path in owner.iterdir()]


async def test_a_csv_is_uploaded_summed_reported_downloaded_and_gone(at: Running, alice: Client):
    files = await put(alice, "s", ("sales.csv", CSV))
    path = "/mnt/user-data/uploads/sales.csv"
    assert files == [{"filename": "sales.csv", "size": len(CSV), "path": path, "mime_type": "text/csv"}]
    at.llm.script(
        tool_call("read_file", {"path": path}),
        tool_call(
            "run_python",
            {"code": f"import csv\nprint(sum(int(r['price']) for r in csv.DictReader(open('{path}'))))"},
        ),
        tool_call("write_file", {"path": "/mnt/user-data/outputs/report.md", "content": "# Sum\n\n7\n"}),
        tool_call("present_files", {"paths": ["outputs/report.md"]}),
        text("The sum is 7."),
    )
    seen = await alice.ask("What is the sum of the prices?", "s")
    read, printed, written, presented = tool_results(at)
    assert read == f"{path}, lines 1-4 of 4\nname,price\npump,3\nvalve,4\n"
    assert printed == "7\n"
    assert "/mnt/user-data/outputs/report.md" in written
    assert "/mnt/user-data/outputs/report.md" in presented
    assert seen.one("artifacts")["artifacts"] == ["/mnt/user-data/outputs/report.md"]
    (artifact,) = (await alice.http.get("/sessions/s/artifacts")).json()["artifacts"]
    assert (artifact["filename"], artifact["size"], artifact["mime_type"]) == ("report.md", 9, "text/markdown")
    download = await alice.http.get(artifact["url"])
    assert download.content == b"# Sum\n\n7\n"
    (thread,) = threads(at)
    assert (await alice.http.delete("/sessions/s")).status_code == 200
    assert not thread.exists()
    assert not thread.parent.exists()
