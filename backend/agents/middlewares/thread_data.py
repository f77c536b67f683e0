"""Where the files of the turn's thread lie."""

import asyncio
from collections.abc import Callable
from typing import Any, NotRequired, cast

from langchain.agents import AgentState
from langchain.agents.middleware import AgentMiddleware
from langgraph.runtime import Runtime

from backend.agents.context import AgentContext
from backend.agents.thread_state import ThreadDataState
from backend.infra.threads import ThreadPaths

Locate = Callable[[str], ThreadPaths]
"""From a thread id to its directories; touches nothing. Raises ``ValueError`` for what is no thread id."""


class ThreadDataSchema(AgentState[Any]):
    """What this rule writes."""

    thread_data: NotRequired[ThreadDataState | None]


class ThreadDataMiddleware(AgentMiddleware[Any, Any]):
    """Puts ``thread_data`` into the state at the beginning of each turn.

    With ``lazy`` the paths are only computed, and whoever writes a file makes its directory; otherwise all three are
    there before the model is called. Raises ``ValueError`` for a turn without a thread id.
    """

    state_schema = ThreadDataSchema

    def __init__(self, locate: Locate, *, lazy: bool = True) -> None:
        super().__init__()
        self._locate = locate
        self._lazy = lazy

    async def abefore_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any]:
        """The paths, for this turn alone: they are never read back."""
        paths = self._locate(thread_id_of(runtime))
        if not self._lazy:
            await asyncio.to_thread(paths.make)
        return {
            "thread_data": ThreadDataState(
                workspace_path=str(paths.workspace), uploads_path=str(paths.uploads), outputs_path=str(paths.outputs)
            )
        }


def thread_id_of(runtime: Runtime[Any]) -> str:
    """The turn's thread. Raises ``ValueError`` when it has none."""
    context: AgentContext | None = cast("Any", runtime).context
    if context is None or not context.thread_id:
        raise ValueError("a thread id is needed")
    return context.thread_id
