"""``list_files``: which files the conversation has."""

import asyncio

from langchain.tools import tool
from langchain_core.tools import BaseTool

from backend.agents.tools.thread import Runtime, ThreadTools, listed, told
from backend.infra.thread_store import list_files as find
from backend.infra.threads import AREAS, ThreadPaths

TOOL_NAME = "list_files"
MAX_LISTED = 200


def build_list_files(tools: ThreadTools) -> BaseTool:
    """The tool over ``tools``."""

    @tool(TOOL_NAME)
    @told
    async def list_files(runtime: Runtime) -> str:
        """List the files of this conversation: uploads (from the user), workspace (yours), outputs (for the user)."""
        return await asyncio.to_thread(_listing, tools.paths(runtime))

    return list_files


def _listing(paths: ThreadPaths) -> str:
    files = [item for area in AREAS for item in find(paths, area, MAX_LISTED + 1)]
    more = "\n(there are more)" if len(files) > MAX_LISTED else ""
    return listed(files[:MAX_LISTED]) + more
