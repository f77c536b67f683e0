"""``present_files``: files are handed to the user."""

import asyncio
from typing import Any

from langchain.tools import tool
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command

from backend.agents.tools.thread import Refusal, Runtime, ThreadTools, listed, told
from backend.infra.thread_store import StoredFile, describe, virtual_path
from backend.infra.threads import OUTPUTS, ThreadPaths

TOOL_NAME = "present_files"
MAX_PRESENTED = 20


def build_present_files(tools: ThreadTools) -> BaseTool:
    """The tool over ``tools``; it adds to ``artifacts``, by paths that are equal for the same file."""

    @tool(TOOL_NAME)
    @told
    async def present_files(paths: list[str], runtime: Runtime) -> Command[Any]:
        """Hand files to the user, who sees and downloads them. Write them below /mnt/user-data/outputs first.

        Args:
            paths: The files, like ["/mnt/user-data/outputs/report.md"].
        """
        files = await asyncio.to_thread(_presentable, tools.paths(runtime), paths)
        message = ToolMessage(
            f"handed to the user:\n{listed(files)}", tool_call_id=runtime.tool_call_id, name=TOOL_NAME
        )
        return Command(update={"artifacts": [str(item.path) for item in files], "messages": [message]})

    return present_files


def _presentable(paths: ThreadPaths, given: list[str]) -> list[StoredFile]:
    if not given or len(given) > MAX_PRESENTED:
        raise Refusal(f"name one file, and {MAX_PRESENTED} at most")
    found = {text: virtual_path(text) for text in given}
    for text, path in found.items():
        if path.area != OUTPUTS:
            raise Refusal(f"only files below /mnt/user-data/{OUTPUTS} can be handed over, and {text!r} is not")
    return [describe(paths, path) for path in dict.fromkeys(found.values())]
