"""Runs one tool the way the agent does."""

from uuid import uuid4

from langchain.tools import ToolRuntime
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool

from backend.chat.request_context import ChatRequestContext


def context(language="en") -> ChatRequestContext:
    return ChatRequestContext.for_sync(uuid4(), "s", language=language)


async def call(tool: BaseTool, ctx: ChatRequestContext, **args: object) -> ToolMessage:
    """The tool message that ``tool`` answers with."""
    runtime = ToolRuntime(
        state={"messages": []},
        context=ctx,
        config={},
        stream_writer=lambda _: None,
        tool_call_id="call_1",
        store=None,
    )
    message = await tool.ainvoke(
        {"type": "tool_call", "id": "call_1", "name": tool.name, "args": {**args, "runtime": runtime}}
    )
    assert isinstance(message, ToolMessage)
    return message
