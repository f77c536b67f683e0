"""The sandbox of the turn's thread: acquired when it is needed, given back at the end."""

import asyncio
from collections.abc import Collection
from typing import Any, NotRequired, cast

from langchain.agents import AgentState
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import Runtime
from langgraph.types import Command

from backend.agents.context import AgentContext
from backend.agents.middlewares.thread_data import thread_id_of
from backend.agents.thread_state import SandboxState
from backend.sandbox.base import SandboxConflict, SandboxProvider

RELEASE_SECONDS = 10.0


class SandboxSchema(AgentState[Any]):
    """What this rule writes."""

    sandbox: NotRequired[SandboxState | None]


class SandboxMiddleware(AgentMiddleware[Any, Any]):
    """Gives a sandbox to the tools named ``needed_by``: in their state is its id.

    With ``lazy`` it is acquired at the first of these calls, otherwise at the beginning of the turn. Raises
    ``ValueError`` without a thread id, :class:`SandboxConflict` for a second sandbox.
    """

    state_schema = SandboxSchema

    def __init__(self, sandboxes: SandboxProvider, needed_by: Collection[str], *, lazy: bool = True) -> None:
        super().__init__()
        self._sandboxes = sandboxes
        self._needed_by = frozenset(needed_by)
        self._lazy = lazy

    async def abefore_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Acquires the sandbox, unless it can wait."""
        thread_id_of(runtime)
        return None if self._lazy else {"sandbox": SandboxState(sandbox_id=(await self._acquire(runtime))[0])}

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Any) -> ToolMessage | Command[Any]:
        """Of several calls in one step one writes the id: they all have the same."""
        if request.tool_call["name"] not in self._needed_by:
            return await handler(request)
        sandbox_id, new = await self._acquire(cast("Runtime[Any]", request.runtime))
        sandbox = SandboxState(sandbox_id=sandbox_id)
        state = {**cast("dict[str, Any]", request.state), "sandbox": sandbox}
        result = await handler(request.override(state=state))
        return _with_sandbox(result, sandbox) if new else result

    async def _acquire(self, runtime: Runtime[Any]) -> tuple[str, bool]:
        """The turn's sandbox, and whether the turn has had none before."""
        thread_id, context = thread_id_of(runtime), cast("AgentContext", runtime.context)
        sandbox_id = await self._sandboxes.acquire(thread_id)
        before = context.sandbox_id
        if before is not None and before != sandbox_id:
            raise SandboxConflict(f"the thread has the sandbox {before} and was given {sandbox_id}")
        context.sandbox_id = sandbox_id
        return sandbox_id, before is None


async def release_sandbox(sandboxes: SandboxProvider, context: AgentContext) -> dict[str, Any] | None:
    """Gives back what the turn has acquired, however it ended; the update says so. ``None``: it had none.

    Takes ``RELEASE_SECONDS`` at most, then raises ``TimeoutError``.
    """
    sandbox_id, context.sandbox_id = context.sandbox_id, None
    if sandbox_id is None:
        return None
    async with asyncio.timeout(RELEASE_SECONDS):
        await sandboxes.release(sandbox_id)
    return {"sandbox": SandboxState(sandbox_id=None)}


def _with_sandbox(result: ToolMessage | Command[Any], sandbox: SandboxState) -> Command[Any]:
    if isinstance(result, ToolMessage):
        return Command(update={"messages": [result], "sandbox": sandbox})
    update = cast("dict[str, Any]", result.update or {})
    return Command(graph=result.graph, goto=result.goto, resume=result.resume, update={**update, "sandbox": sandbox})
