"""A conversation with files, end to end: uploads, tools, artifacts, and nothing of it for anybody else."""

import asyncio
import io
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from PIL import Image
from sqlalchemy import URL

from tests.acceptance.running import Running, running
from tests.support.chat_client import Client
from tests.support.fake_llm import text, tool_call

pytestmark = pytest.mark.asyncio(loop_scope="module")
MAX_UPLOAD = 2_000_000
LIMIT = 1_000_000
"""``MAX_BYTES_PER_USER`` here."""
CSV = b"name,price\npump,3\nvalve,4\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    limits = {"max_bytes_per_user": LIMIT, "max_upload_bytes": MAX_UPLOAD, "max_body_bytes": 50_000}
    async with running(postgres_url, valkey_url, f"thread_files_{worker_id}", **limits) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Running) -> AsyncIterator[Running]:
    await shared.reset()
    for owner in (shared.data_dir / "threads").iterdir():
        shutil.rmtree(owner)
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


async def test_a_photo_is_looked_at_once(at: Running, alice: Client):
    await put(alice, "s", ("photo.png", png()))
    at.llm.script(tool_call("view_image", {"path": "uploads/photo.png"}), text("A blue square."))
    await alice.ask("What is on the photo?", "s")
    await alice.ask("And now?", "s")
    shown = [request for request in at.llm.requests if "data:image/png;base64," in str(request.body)]
    assert len(shown) == 1
    ((state,),) = await at.sql("select thread_state::text from chat_sessions")
    assert "base64" not in state


def png() -> bytes:
    target = io.BytesIO()
    Image.new("RGB", (30, 20), (0, 0, 255)).save(target, "PNG")
    return target.getvalue()


async def test_a_session_that_was_not_used_is_made_by_an_upload(at: Running, alice: Client):
    assert (await alice.get("/sessions/s/uploads")).json() == {"files": []}
    assert (await alice.get("/sessions/s/artifacts")).json() == {"artifacts": []}
    await put(alice, "s", ("a.txt", b"x"))
    (session,) = (await alice.get("/sessions")).json()["sessions"]
    assert (session["session_id"], session["title"], session["message_count"]) == ("s", None, 0)
    await alice.ask("What files do I have?", "s")
    (session,) = (await alice.get("/sessions")).json()["sessions"]
    assert (session["title"], session["message_count"]) == ("What files do I have?", 2)
    assert [item["filename"] for item in (await alice.messages("s"))[0]["attachments"]] == ["a.txt"]


async def test_the_same_name_replaces_and_a_deleted_file_is_gone(at: Running, alice: Client):
    await put(alice, "s", ("a.txt", b"first"), ("b.txt", b"other"))
    await put(alice, "s", ("a.txt", b"second one"))
    files = (await alice.get("/sessions/s/uploads")).json()["files"]
    assert [(item["filename"], item["size"]) for item in files] == [("a.txt", 10), ("b.txt", 5)]
    assert (await alice.get("/sessions/s/artifacts/uploads/a.txt")).content == b"second one"
    gone = await alice.http.delete("/sessions/s/uploads/a.txt")
    assert gone.json() == {"filename": "a.txt", "message": "The file was removed."}
    assert (await alice.http.delete("/sessions/s/uploads/a.txt")).status_code == 404
    assert (await alice.get("/sessions/s/artifacts/uploads/a.txt")).status_code == 404
    at.llm.script(tool_call("read_file", {"path": "uploads/a.txt"}), text("It is gone."))
    await alice.ask("Read a.txt", "s")
    assert tool_results(at) == ["Error: there is no such file; list_files shows those that there are"]
    listed = [request.body["messages"] for request in at.llm.chats][-1]
    assert "a.txt" not in str([item for item in listed if item["role"] == "user"][-1]["content"]).partition("[Files")[2]


NAMES = [
    "../../x.txt",
    "/tmp/x.txt",
    "..\\..\\x",
    "%2e%2e/x",
    "....//",
    "C:\\x",
    "\\\\host\\share",
    "a\nb.txt",
    "photo\u202egnp.exe",
    "报" * 300 + ".txt",
    "<script>alert(1)</script>.txt",
    ".bashrc",
]


async def test_h07_names_of_any_kind_stay_within_the_thread(at: Running, alice: Client):
    outside = {path for path in at.data_dir.rglob("*") if "threads" not in path.parts}
    for number, name in enumerate(NAMES):
        (file,) = await put(alice, f"s{number}", (name, b"content"))
        (stored,) = [path for path in threads(at) if (path / "uploads" / file["filename"]).is_file()][-1:]
        assert (stored / "uploads" / file["filename"]).read_bytes() == b"content"
        for directory in threads(at):
            assert {path.name for path in directory.iterdir()} <= {"uploads", "workspace", "outputs", "incoming"}
        found = await alice.get(f"/sessions/s{number}/artifacts/uploads/{quote(file['filename'])}")
        assert found.content == b"content"
        for tried in (name, quote(name, safe=""), f"uploads/{name}"):
            for method, route in (("DELETE", "uploads"), ("GET", "artifacts")):
                answer = await alice.http.request(method, f"/sessions/other/{route}/{quote(tried, safe='')}")
                assert answer.status_code in (404, 307)  # a slash at the end leads to the address without it
    assert {path for path in at.data_dir.rglob("*") if "threads" not in path.parts} == outside


@pytest.mark.parametrize(
    "path",
    [
        "../../../jwt",
        "..%2f..%2fsecret",
        "/etc/passwd",
        "mnt/user-data/../x",
        "outputs",
        "uploads",
        "incoming/x",
        "a%00b",
    ],
)
async def test_h07_no_address_leads_out_of_the_thread(at: Running, alice: Client, path: str):
    await put(alice, "s", ("a.txt", b"x"))
    answer = await alice.get(f"/sessions/s/artifacts/{quote(path)}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_j09_files_are_saved_and_never_run(at: Running, alice: Client):
    page = b"<script>alert(1)</script>"
    drawing = b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"
    await put(alice, "s", ("page.html", page), ("drawing.svg", drawing), ("photo.png", png()))
    for name, kind in (
        ("page.html", "text/plain; charset=utf-8"),
        ("drawing.svg", "application/octet-stream"),
        ("photo.png", "image/png"),
    ):
        answer = await alice.get(f"/sessions/s/artifacts/uploads/{name}")
        assert answer.headers["content-type"] == kind
        assert answer.headers["content-disposition"] == f"attachment; filename*=utf-8''{name}"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")


async def test_one_range_can_be_asked_for(at: Running, alice: Client):
    await put(alice, "s", ("a.txt", b"0123456789"))

    async def part(asked: str) -> tuple[int, bytes, str | None]:
        answer = await alice.get("/sessions/s/artifacts/uploads/a.txt", headers={"Range": asked})
        assert int(answer.headers["content-length"]) == len(answer.content)
        return answer.status_code, answer.content, answer.headers.get("content-range")

    assert await part("bytes=2-4") == (206, b"234", "bytes 2-4/10")
    assert await part("bytes=7-") == (206, b"789", "bytes 7-9/10")
    assert await part("bytes=-3") == (206, b"789", "bytes 7-9/10")
    assert await part("bytes=8-99") == (206, b"89", "bytes 8-9/10")
    for asked in ("bytes=0-", "bytes=99-", "bytes=5-2", "bytes=0-1,3-4", "lines=1-2", "bytes=-", "bytes=-0"):
        assert await part(asked) == (200, b"0123456789", None), asked
    many = await alice.get("/sessions/s/artifacts/uploads/a.txt", headers={"Range": "bytes=" + "0-1," * 1_000})
    assert many.status_code == 422


async def test_what_is_too_much_is_refused_and_leaves_nothing(at: Running, alice: Client):
    files = [("file", (f"{number}.txt", b"x")) for number in range(200)]
    answer = await alice.http.post("/sessions/s/uploads", files=files)
    assert answer.status_code == 413
    assert (answer.json()["code"], answer.json()["limit"]) == ("too_large", "MAX_FILES_PER_SESSION")
    assert (await alice.get("/sessions")).json()["sessions"] == []
    await put(alice, "s", *((f"{number}.txt", b"x") for number in range(48)))
    answer = await alice.http.post("/sessions/s/uploads", files=files[47:51])
    assert answer.json()["limit"] == "MAX_FILES_PER_SESSION"
    assert len((await alice.get("/sessions/s/uploads")).json()["files"]) == 48
    answer = await alice.http.post("/sessions/s/uploads", files={"file": ("big", b"x" * (LIMIT + 1))})
    assert answer.json()["limit"] == "MAX_BYTES_PER_USER"
    await put(alice, "s", ("a.bin", b"x" * (LIMIT - 1_000)))
    answer = await alice.http.post("/sessions/other/uploads", files={"file": ("b.bin", b"x" * 1_001)})
    assert answer.json()["limit"] == "MAX_BYTES_PER_USER"
    assert [item["session_id"] for item in (await alice.get("/sessions")).json()["sessions"]] == ["s"]
    (thread,) = threads(at)
    assert not any((thread / "incoming").iterdir())


async def test_h15_who_is_unknown_or_sends_too_much_is_refused_before_the_form_is_read(at: Running, alice: Client):
    files = {"file": ("a.txt", b"x" * 100)}
    async with httpx.AsyncClient(base_url=at.url) as nobody:
        for headers in ({}, {"Authorization": "Bearer x"}):
            assert (await nobody.post("/sessions/s/uploads", files=files, headers=headers)).status_code == 401
    answer = await alice.http.post("/sessions/s/uploads", files={"file": ("big", b"x" * (MAX_UPLOAD + 100_000))})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    parts = [("file", (f"{number}", b"")) for number in range(5_000)]
    assert (await alice.http.post("/sessions/s/uploads", files=parts)).status_code in (400, 413, 422)
    for form in ({"data": {"owner": "x"}}, {"files": {"other": ("a", b"x")}}, {"data": {"file": "text"}}):
        assert (await alice.http.post("/sessions/s/uploads", **form)).status_code == 422
    assert (await alice.http.post("/sessions/../uploads", files=files)).status_code in (404, 405, 422)
    assert (await alice.get("/sessions")).json()["sessions"] == []


async def test_d03_a_file_that_goes_while_an_answer_is_written_ends_nothing(at: Running, alice: Client):
    await put(alice, "s", ("a.txt", b"x"))
    at.llm.script(
        text("Reading it now " * 40, delay=0.02),
    )
    async with alice.stream("Read it", "s") as stream:
        await stream.until_text("Reading")
        assert (await alice.http.delete("/sessions/s/uploads/a.txt")).status_code == 200
        await put(alice, "s", ("b.txt", b"y"))
        await stream.end()
    assert stream.one("done")["status"] == "completed"
    assert [item["filename"] for item in (await alice.get("/sessions/s/uploads")).json()["files"]] == ["b.txt"]


async def test_two_uploads_of_one_name_at_once_leave_one_whole(at: Running, alice: Client):
    contents = [letter * 50_000 for letter in (b"a", b"b", b"c", b"d")]
    await asyncio.gather(*(put(alice, "s", ("same.bin", content)) for content in contents))
    (file,) = (await alice.get("/sessions/s/uploads")).json()["files"]
    assert file["size"] == 50_000
    assert (await alice.get("/sessions/s/artifacts/uploads/same.bin")).content in contents


async def test_j03_nobody_reads_anothers_file_by_any_tool(at: Running, alice: Client):
    await put(alice, "s", ("secret.txt", b"zebraquartz4711"))
    (thread,) = threads(at)
    async with at.user() as bob:
        for path in (
            "uploads/secret.txt",
            "/mnt/user-data/uploads/secret.txt",
            str(thread / "uploads" / "secret.txt"),
            f"../../{thread.name}/uploads/secret.txt",
            f"../../../{thread.parent.name}/{thread.name}/uploads/secret.txt",
        ):
            at.llm.script(
                tool_call("read_file", {"path": path}),
                tool_call("view_image", {"path": path}),
                tool_call("run_python", {"code": f"print(open({path!r}).read())"}),
                tool_call("search_uploads", {"query": "zebraquartz4711", "path": path}),
                tool_call("edit_file", {"path": path, "old": "zebraquartz4711", "new": "x"}),
                tool_call("present_files", {"paths": [path]}),
                tool_call("list_files", {}),
                text("Nothing."),
            )
            seen = await bob.ask("Read the file", "s")
            told = tool_results(at)
            assert len(told) == 7
            assert all(part.startswith("Error") for part in told[:2])
            assert "zebraquartz4711" not in "".join(told[:3] + told[4:])
            assert seen.one("done")["status"] == "completed"
        assert (await bob.get("/sessions/s/artifacts/uploads/secret.txt")).status_code == 404
        assert (await bob.get("/sessions/s/uploads")).json() == {"files": []}
        assert (await bob.http.delete("/sessions/s/uploads/secret.txt")).status_code == 404
    assert (thread / "uploads" / "secret.txt").read_bytes() == b"zebraquartz4711"


async def test_g05_what_could_not_be_removed_goes_with_the_next_sweep(
    at: Running, alice: Client, monkeypatch: pytest.MonkeyPatch
):
    await put(alice, "s", ("a.txt", b"zebraquartz4711"))
    (thread,) = threads(at)

    def fails(_: object) -> None:
        raise OSError

    with monkeypatch.context() as patched:
        patched.setattr("backend.chat.storage.remove_thread", fails)
        assert (await alice.http.delete("/sessions/s")).status_code == 200
        assert thread.exists()
        ((target,),) = await at.sql("select target from purge_outbox where kind = 'thread_files'")
        assert target.endswith(thread.name)
    await at.services.chat.storage.sweep_deleted()
    assert await at.sql("select * from purge_outbox where kind = 'thread_files'") == []
    assert not thread.exists()


async def test_g05_a_directory_without_a_session_is_swept(at: Running, alice: Client):
    await put(alice, "s", ("a.txt", b"x"))
    (thread,) = threads(at)
    orphan = thread.parent / str(uuid4())
    (orphan / "uploads").mkdir(parents=True)
    left = thread / "incoming" / "left"
    left.write_bytes(b"x")
    os.utime(left, (0, 0))
    (thread / "incoming" / "new").write_bytes(b"x")
    await at.services.files.sweep()
    assert threads(at) == [thread]
    assert [path.name for path in (thread / "incoming").iterdir()] == ["new"]
    assert (thread / "uploads" / "a.txt").exists()


async def test_a_conversation_without_files_is_not_offered_the_tools_for_them(at: Running, alice: Client):
    def offered() -> list[set[str]]:
        chats = [request.body["tools"] for request in at.llm.chats if request.body.get("tools")]
        return [{tool["function"]["name"] for tool in tools} for tools in chats]

    needing = {"list_files", "read_file", "search_uploads", "view_image", "edit_file"}
    at.llm.script(text("Hello."))
    await alice.ask("Hello", "plain")
    assert {"run_python", "write_file", "present_files"} <= offered()[0]
    assert not needing & offered()[0]
    at.llm.requests.clear()
    at.llm.script(tool_call("write_file", {"path": "a", "content": "x"}), text("Done."))
    await alice.ask("Write it", "plain")
    first, second = offered()[:2]
    assert not needing & first
    assert needing <= second
    await put(alice, "plain", ("a.txt", b"x"))
    at.llm.requests.clear()
    at.llm.script(text("Yes."))
    await alice.ask("Is it there?", "plain")
    assert needing <= offered()[0]
