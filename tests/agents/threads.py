"""Threads for tests: tools that change the state as real ones do, and sandboxes that remember what was asked."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain.tools import ToolRuntime, tool
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command

from backend.agents.lead import Threads
from backend.agents.thread_state import ThreadState, ViewedImageData
from backend.chat.titles import rule_title
from backend.infra.threads import ThreadPaths

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one pixel, as base64."""

Runtime = ToolRuntime[Any, ThreadState]


@dataclass
class RememberedSandboxes:
    """One sandbox a thread; ``conflicting``: another one each time."""

    conflicting: bool = False
    acquired: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    async def acquire(self, thread_id: str) -> str:
        self.acquired.append(thread_id)
        return f"sandbox-{len(self.acquired)}" if self.conflicting else f"sandbox of {thread_id}"

    async def release(self, sandbox_id: str) -> None:
        self.released.append(sandbox_id)


def threads(root: Path, sandboxes: RememberedSandboxes | None = None, **options: Any) -> Threads:
    """Threads below ``root``; ``use_sandbox`` is the tool that needs a sandbox."""
    return Threads(
        lambda thread_id: ThreadPaths(root / thread_id),
        sandboxes or RememberedSandboxes(),
        ["use_sandbox"],
        rule_title,
        **options,
    )


@tool
async def present_files(paths: list[str], runtime: Runtime) -> Command[Any]:
    """Hands files to the user."""
    return Command(
        update={"artifacts": paths, "messages": [ToolMessage("presented", tool_call_id=runtime.tool_call_id)]}
    )


@tool
async def view_image(path: str, runtime: Runtime) -> Command[Any]:
    """Shows an image to the model."""
    image = ViewedImageData(base64=PIXEL, mime_type="image/png")
    message = ToolMessage("shown in the next message", tool_call_id=runtime.tool_call_id)
    return Command(update={"viewed_images": {path: image}, "messages": [message]})


@tool
async def use_sandbox(code: str, runtime: Runtime) -> str:
    """Tells in which sandbox and directory it runs."""
    sandbox, data = runtime.state.get("sandbox") or {}, runtime.state.get("thread_data") or {}
    return f"{sandbox.get('sandbox_id')} at {data.get('workspace_path')}"


@tool
async def read_much(runtime: Runtime) -> str:
    """Gives 200 KB."""
    return "0123456789" * 20_000


@tool
async def sleep(runtime: Runtime) -> str:
    """Takes for ever."""
    await asyncio.sleep(3_600)
    return "awake"


TOOLS: list[BaseTool] = [present_files, view_image, use_sandbox, read_much, sleep]
