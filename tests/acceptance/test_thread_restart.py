"""Files of a conversation with a server process that is killed: before, between and after (D03, G05)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client
from tests.support.fake_llm import text, tool_call
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
MARKER = b"zebraquartz4711"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    env = {"LEASE_SECONDS": "2", "SHUTDOWN_GRACE_SECONDS": "5", "MODEL_TITLES": "false"}
    async with rack(postgres_url, valkey_url, f"thread_restart_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    if at.server.returncode is not None:
        await at.server.start()
    await at.reset()
    async with at.user() as client:
        yield client


async def put(client: Client, name: str, content: bytes, session_id: str = "s") -> None:
    answer = await client.http.post(f"/sessions/{session_id}/uploads", files={"file": (name, content)})
    assert answer.status_code == 200, answer.text


def files(at: Rack) -> list[Path]:
    return [path for path in (at.server._data_dir / "threads").rglob("*") if path.is_file()]


async def test_what_was_put_in_and_made_is_there_after_a_kill_and_gone_with_the_session(at: Rack, alice: Client):
    await put(alice, "sales.csv", b"price\n3\n4\n")
    at.llm.script(
        tool_call("run_python", {"code": "open('/mnt/user-data/outputs/r.md', 'w').write('# 7')"}),
        tool_call("present_files", {"paths": ["outputs/r.md"]}),
        text("Done."),
    )
    await alice.ask("Report?")
    await at.server.kill9()
    await at.server.start()
    assert [item["filename"] for item in (await alice.get("/sessions/s/uploads")).json()["files"]] == ["sales.csv"]
    (artifact,) = (await alice.get("/sessions/s/artifacts")).json()["artifacts"]
    assert (await alice.get(artifact["url"])).content == b"# 7"
    at.llm.script(tool_call("list_files", {}), text("Two."))
    await alice.ask("What files do I have?")
    told = [item["content"] for item in at.llm.chats[-1].messages if item["role"] == "tool"][-1]
    assert "/mnt/user-data/uploads/sales.csv" in told
    assert "/mnt/user-data/outputs/r.md" in told
    assert (await alice.http.delete("/sessions/s")).status_code == 200
    assert files(at) == []
    assert list((at.server._data_dir / "threads").iterdir()) == []


async def test_d03_killed_while_a_file_comes_in_leaves_no_half_of_it(at: Rack, alice: Client):
    await put(alice, "whole.bin", MARKER)
    begun = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="whole.bin"\r\n\r\n'
        yield head + b"x" * 2_000_000
        begun.set()
        await asyncio.Event().wait()

    headers = {"content-type": "multipart/form-data; boundary=x"}
    sending = asyncio.create_task(alice.http.post("/sessions/s/uploads", content=body(), headers=headers))
    await begun.wait()
    await at.server.kill9()
    sending.cancel()
    await asyncio.wait([sending])
    await at.server.start()
    (file,) = (await alice.get("/sessions/s/uploads")).json()["files"]
    assert file["size"] == len(MARKER)
    assert (await alice.get("/sessions/s/artifacts/uploads/whole.bin")).content == MARKER


async def test_g05_killed_between_the_row_and_the_files_the_files_go_later(at: Rack, alice: Client):
    await put(alice, "a.txt", MARKER)
    ((owner, row),) = await at.sql("select user_id, id from chat_sessions")
    await at.server.kill9()
    # What a deletion has committed when it is killed before it removes the files.
    await at.sql("delete from chat_sessions")
    await at.sql("insert into purge_outbox (kind, target) values ('thread_files', :target)", target=f"{owner}/{row}")
    theirs = [path for path in files(at) if str(row) in path.parts]
    assert [path.read_bytes() for path in theirs] == [MARKER]
    await at.server.start()

    async def swept() -> bool:
        return not theirs[0].parent.parent.exists() and await at.sql("select * from purge_outbox") == []

    await until(swept, 90)
    assert (await alice.get("/sessions/s/uploads")).json() == {"files": []}


async def test_a_killed_server_leaves_no_program_running(at: Rack, alice: Client):
    at.llm.script(tool_call("run_python", {"code": "while True: pass"}), text("Never."))
    async with alice.stream("Loop") as stream:

        async def runs() -> bool:
            return bool(programs(at.server.pid))

        await until(runs)
        (program,) = programs(at.server.pid)
        await at.server.kill9()
        with pytest.raises(httpx.TransportError):
            await stream.end()

    async def ended() -> bool:
        return not program.is_running() or program.status() == psutil.STATUS_ZOMBIE

    await until(ended, 60)  # at the latest when its own time is up


def programs(pid: int) -> list[psutil.Process]:
    return [found for found in psutil.Process(pid).children(recursive=True) if "monty" in found.name()]
