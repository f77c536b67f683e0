"""``view_image``: the model looks at a picture."""

import asyncio
from typing import Any

from langchain.tools import tool
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command

from backend.agents.thread_state import ViewedImageData
from backend.agents.tools.thread import Refusal, Runtime, ThreadTools, told
from backend.infra.images import ImageRefused, ReadyImage, ready_image
from backend.infra.thread_store import VirtualPath, open_file, virtual_path
from backend.infra.threads import ThreadPaths

TOOL_NAME = "view_image"


def build_view_image(tools: ThreadTools) -> BaseTool:
    """The tool over ``tools``; it adds to ``viewed_images``."""

    one_at_a_time = asyncio.Semaphore(1)  # for their memory

    @tool(TOOL_NAME)
    @told
    async def view_image(path: str, runtime: Runtime) -> Command[Any]:
        """Look at a PNG, JPEG, WebP or GIF image.

        Args:
            path: The image, like /mnt/user-data/uploads/photo.jpg.
        """
        found = virtual_path(path)
        async with one_at_a_time:
            image = await asyncio.to_thread(_read, tools.paths(runtime), found)
        shown = ViewedImageData(base64=image.base64, mime_type=image.mime_type)
        text = f"{found} ({image.width} x {image.height} pixels) is shown in the next message"
        message = ToolMessage(text, tool_call_id=runtime.tool_call_id, name=TOOL_NAME)
        return Command(update={"viewed_images": {str(found): shown}, "messages": [message]})

    return view_image


def _read(paths: ThreadPaths, path: VirtualPath) -> ReadyImage:
    with open_file(paths, path) as file:
        try:
            return ready_image(file)
        except ImageRefused as error:
            raise Refusal(str(error)) from error
