"""The tools for files and code, on a real thread with the real sandbox."""

import io
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fpdf import FPDF
from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command
from PIL import Image

from backend.agents.tools.files import build_file_tools
from backend.agents.tools.thread import ThreadTools
from backend.chat.request_context import ChatRequestContext
from backend.infra.threads import ThreadPaths, locate_thread, thread_id_of
from backend.knowledge.config import KnowledgeConfig
from backend.sandbox.base import SandboxLimits
from backend.sandbox.local import LocalSandboxes

LIMITS = SandboxLimits(seconds=2, memory_bytes=32 * 1024 * 1024, storage_bytes=10_000, storage_files=20)


@dataclass
class Thread:
    """A thread with its tools."""

    paths: ThreadPaths
    tools: dict[str, BaseTool]
    context: ChatRequestContext
    sandboxes: LocalSandboxes

    async def call(self, tool: str, **args: Any) -> ToolMessage | Command[Any]:
        sandbox = await self.sandboxes.acquire(self.context.thread_id or "")
        runtime = ToolRuntime(
            state={"messages": [], "sandbox": {"sandbox_id": sandbox}},
            context=self.context,
            config={},
            stream_writer=lambda _: None,
            tool_call_id="call_1",
            store=None,
        )
        call = {"type": "tool_call", "id": "call_1", "name": tool, "args": {**args, "runtime": runtime}}
        return await self.tools[tool].ainvoke(call)

    async def text(self, tool: str, **args: Any) -> str:
        answer = await self.call(tool, **args)
        assert isinstance(answer, ToolMessage)
        return str(answer.content)

    async def update(self, tool: str, **args: Any) -> dict[str, Any]:
        answer = await self.call(tool, **args)
        assert isinstance(answer, Command), answer
        return answer.update


def thread_in(data_dir: Path) -> Thread:
    def locate(thread_id: str) -> ThreadPaths:
        return locate_thread(data_dir, thread_id)

    sandboxes = LocalSandboxes(locate, LIMITS)
    tools = build_file_tools(ThreadTools(locate, sandboxes, KnowledgeConfig()))
    owner, row = uuid4(), uuid4()
    context = ChatRequestContext.for_sync(owner, "s", thread_id=thread_id_of(owner, row))
    made = Thread(locate(context.thread_id), {tool.name: tool for tool in tools}, context, sandboxes)
    made.paths.make()
    return made


@pytest.fixture
async def thread(tmp_path: Path) -> AsyncIterator[Thread]:
    made = thread_in(tmp_path)
    yield made
    await made.sandboxes.aclose()


def png(size: tuple[int, int] = (30, 20)) -> bytes:
    target = io.BytesIO()
    Image.new("RGB", size, (0, 0, 255)).save(target, "PNG")
    return target.getvalue()


async def test_files_are_listed_with_kind_and_size(thread: Thread):
    assert await thread.text("list_files") == "There are no files below /mnt/user-data."
    (thread.paths.uploads / "a.csv").write_text("x,y\n")
    (thread.paths.workspace / "n\nl").write_text("z")
    assert await thread.text("list_files") == (
        "/mnt/user-data/workspace/n\N{REPLACEMENT CHARACTER}l (text/plain, 1 bytes)\n"
        "/mnt/user-data/uploads/a.csv (text/csv, 4 bytes)"
    )


async def test_lines_of_a_text_are_read(thread: Thread):
    (thread.paths.uploads / "a.txt").write_text("\n".join(f"line {n}" for n in range(1, 11)))
    assert await thread.text("read_file", path="uploads/a.txt", start_line=3, end_line=4) == (
        "/mnt/user-data/uploads/a.txt, lines 3-4 of 10\nline 3\nline 4"
    )
    (thread.paths.uploads / "gbk.txt").write_bytes("你好，今天我们讨论水泵的维护计划和安全检查。".encode("gbk") * 20)
    assert "水泵的维护计划" in await thread.text("read_file", path="uploads/gbk.txt")


async def test_a_long_text_is_read_in_parts(thread: Thread):
    (thread.paths.uploads / "long.txt").write_text("\n".join("x" * 99 for _ in range(1_000)) + "\n" + "y" * 50_000)
    first = await thread.text("read_file", path="uploads/long.txt")
    assert first.startswith("/mnt/user-data/uploads/long.txt, lines 1-80 of 1001; search_uploads finds")
    assert len(first) < 9_000
    assert len(await thread.text("read_file", path="uploads/long.txt", start_line=1_001)) < 3_000
    assert (await thread.text("read_file", path="uploads/long.txt", start_line=5_000)).endswith("of 1001")


async def test_a_document_is_read_as_text_with_its_pages(thread: Thread):
    document = FPDF()
    document.set_font("helvetica")
    for words in ("The warranty lasts 24 months.", "The pump is blue."):
        document.add_page()
        document.cell(text=words)
    (thread.paths.uploads / "pump.pdf").write_bytes(bytes(document.output()))
    text = await thread.text("read_file", path="uploads/pump.pdf")
    assert text.index("page 1") < text.index("24 months") < text.index("page 2") < text.index("blue")
    found = await thread.call("search_uploads", query="How long is the warranty?")
    assert isinstance(found, ToolMessage)
    assert found.artifact[0]["filename"] == "pump.pdf"
    assert found.artifact[0]["page_number"] == 1
    assert "24 months" in found.artifact[0]["text"]
    assert "/mnt/user-data/uploads/pump.pdf (page 1):" in str(found.content)


async def test_a_place_in_a_large_upload_is_found(thread: Thread):
    lines = [f"Order {n} of valve {n % 7} was shipped on time." for n in range(8_000)]
    lines[6_000] = "The zebraquartz alloy melts at 1,234 degrees."
    (thread.paths.uploads / "large.txt").write_text("\n".join(lines))
    (thread.paths.uploads / "photo.png").write_bytes(png())
    found = await thread.call("search_uploads", query="zebraquartz melting point")
    assert isinstance(found, ToolMessage)
    assert "1,234 degrees" in found.artifact[0]["text"]
    assert "Nothing was found" in await thread.text("search_uploads", query="submarine")
    assert "image" in await thread.text("search_uploads", query="x", path="uploads/photo.png")


async def test_a_text_is_written_and_edited(thread: Thread):
    assert await thread.text("write_file", path="outputs/r.md", content="# Sum\n\n7\n7\n") == (
        "written: /mnt/user-data/outputs/r.md (11 bytes)"
    )
    assert "occurs 2 times" in await thread.text("edit_file", path="outputs/r.md", old="7", new="8")
    assert "does not occur" in await thread.text("edit_file", path="outputs/r.md", old="9", new="8")
    assert "does not occur" in await thread.text("edit_file", path="outputs/r.md", old="", new="8")
    await thread.text("edit_file", path="outputs/r.md", old="# Sum", new="# 总和")
    await thread.text("edit_file", path="outputs/r.md", old="7", new="8", replace_all=True)
    assert (thread.paths.outputs / "r.md").read_text() == "# 总和\n\n8\n8\n"


async def test_files_are_handed_over_by_one_path_each(thread: Thread):
    (thread.paths.outputs / "r.md").write_text("x")
    given = ["outputs/r.md", "/mnt/user-data/outputs/r.md", "/mnt/user-data/outputs/./r.md"]
    update = await thread.update("present_files", paths=given)
    assert update["artifacts"] == ["/mnt/user-data/outputs/r.md"]
    assert update["messages"][0].tool_call_id == "call_1"
    (thread.paths.uploads / "u.md").write_text("x")
    for paths in ([], ["uploads/u.md"], ["outputs/absent"], ["/etc/passwd"], ["outputs/r.md"] * 21):
        assert (await thread.text("present_files", paths=paths)).startswith("Error: ")


async def test_an_image_is_shown(thread: Thread):
    (thread.paths.uploads / "photo.png").write_bytes(png())
    update = await thread.update("view_image", path="uploads/photo.png")
    ((path, image),) = update["viewed_images"].items()
    assert path == "/mnt/user-data/uploads/photo.png"
    assert image["mime_type"] == "image/png"
    assert "30 x 20 pixels" in update["messages"][0].content


async def test_a_text_that_is_called_png_is_no_image(thread: Thread):
    (thread.paths.uploads / "fake.png").write_text("hello")
    assert "no PNG" in await thread.text("view_image", path="uploads/fake.png")
    assert (await thread.text("read_file", path="uploads/fake.png")).endswith("\nhello")
    (thread.paths.uploads / "real.png").write_bytes(png())
    assert "view_image" in await thread.text("read_file", path="uploads/real.png")


async def test_code_runs_with_the_files(thread: Thread):
    (thread.paths.uploads / "s.csv").write_text("price\n3\n4\n")
    code = "import csv\nprint(sum(int(r['price']) for r in csv.DictReader(open('/mnt/user-data/uploads/s.csv'))))"
    assert await thread.text("run_python", code=code) == "7\n"
    assert await thread.text("run_python", code="x = 1") == "(nothing was printed)"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("while True: pass", "time limit"),
        ("x = [0]\nwhile True: x = x + x", "memory limit"),
        ("import os\nos.system('ls')", "AttributeError"),
        ("open('big', 'w').write('x' * 20_000)", "storage limit"),
        ("print('before')\n1 / 0", "before\n\nError: Traceback"),
        ("print('\\x00a')", "a"),
    ],
)
async def test_what_code_does_wrong_is_told(thread: Thread, code: str, told: str):
    assert told in await thread.text("run_python", code=code)
    assert await thread.text("run_python", code="print(2)") == "2\n"


@pytest.mark.parametrize("tool", ["read_file", "view_image", "edit_file"])
@pytest.mark.parametrize("path", ["uploads/gone.txt", "/etc/passwd", "../../x", "uploads", "a\x01b", "x" * 400, ""])
async def test_what_is_not_there_is_told_and_nothing_of_the_machine(
    thread: Thread, tmp_path: Path, tool: str, path: str
):
    args = {"old": "a", "new": "b"} if tool == "edit_file" else {}
    told = await thread.text(tool, path=path, **args)
    assert told.startswith("Error: ")
    assert str(tmp_path) not in told
    assert "root:" not in told


async def test_a_full_workspace_is_told(thread: Thread):
    assert "full" in await thread.text("write_file", path="a", content="x" * 20_000)
    assert "only be read" in await thread.text("write_file", path="uploads/a", content="x")


async def test_no_tool_reaches_another_thread(thread: Thread, tmp_path: Path):
    other = thread_in(tmp_path)
    (other.paths.uploads / "secret.txt").write_text("zebraquartz")
    owner, row = (other.context.thread_id or "").split("/")
    for path in (
        f"../../{row}/uploads/secret.txt",
        f"/mnt/user-data/../../{owner}/{row}/uploads/secret.txt",
        str(other.paths.uploads / "secret.txt"),
        "uploads/secret.txt",
    ):
        for tool in ("read_file", "view_image"):
            assert "zebraquartz" not in await thread.text(tool, path=path)
        assert "zebraquartz" not in await thread.text("run_python", code=f"print(open({path!r}).read())")
        assert "zebraquartz" not in await thread.text("search_uploads", query="zebraquartz", path=path)
    assert "zebraquartz" not in await thread.text("search_uploads", query="zebraquartz")
    assert "secret" not in await thread.text("list_files")
    await other.sandboxes.aclose()
