"""``write_file`` and ``edit_file``: texts that the assistant makes."""

import asyncio

from langchain.tools import tool
from langchain_core.tools import BaseTool

from backend.agents.tools.thread import Refusal, Runtime, ThreadTools, told
from backend.infra.thread_store import VirtualPath, open_file, virtual_path
from backend.infra.thread_store import write_file as put
from backend.infra.threads import ThreadPaths
from backend.text import clean_text

WRITE_FILE, EDIT_FILE = "write_file", "edit_file"
MAX_EDITED_BYTES = 2 * 1024 * 1024


def build_write_file(tools: ThreadTools) -> BaseTool:
    """The tool over ``tools``."""

    @tool(WRITE_FILE)
    @told
    async def write_file(path: str, content: str, runtime: Runtime) -> str:
        """Write a text file; one that is there is replaced. What the user is to get goes below /mnt/user-data/outputs.

        Args:
            path: Like /mnt/user-data/outputs/report.md; a bare name lies in the workspace.
            content: The whole text.
        """
        found, data = virtual_path(path), clean_text(content).encode()
        await asyncio.to_thread(put, tools.paths(runtime), found, data, tools.limits)
        return f"written: {found} ({len(data)} bytes)"

    return write_file


def build_edit_file(tools: ThreadTools) -> BaseTool:
    """The tool over ``tools``."""

    @tool(EDIT_FILE)
    @told
    async def edit_file(path: str, old: str, new: str, runtime: Runtime, replace_all: bool = False) -> str:
        """Replace a piece of a text file.

        Args:
            path: The file.
            old: The piece as it stands there; it must occur once, unless replace_all is set.
            new: What takes its place.
            replace_all: Replace every occurrence.
        """
        found, paths = virtual_path(path), tools.paths(runtime)
        count = await asyncio.to_thread(_edit, tools, paths, found, (clean_text(old), clean_text(new)), replace_all)
        return f"replaced {count} in {found}"

    return edit_file


def _edit(tools: ThreadTools, paths: ThreadPaths, path: VirtualPath, change: tuple[str, str], replace_all: bool) -> int:
    with open_file(paths, path) as file:
        data = file.read(MAX_EDITED_BYTES + 1)
    if len(data) > MAX_EDITED_BYTES:
        raise Refusal("the file is too large to be edited; run_python can change it")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Refusal("the file is no UTF-8 text") from error
    old, new = change
    count = text.count(old) if old else 0
    if count == 0:
        raise Refusal("the piece to replace does not occur in the file")
    if count > 1 and not replace_all:
        raise Refusal(f"the piece to replace occurs {count} times; give more of what stands around it")
    put(paths, path, text.replace(old, new).encode(), tools.limits)
    return count
