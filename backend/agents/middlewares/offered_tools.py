"""A conversation without files is not offered the tools that need some: their schemas cost tokens in each call."""

from collections.abc import Awaitable, Callable, Collection
from typing import Any, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.messages import ToolMessage

_SIGNS = ("uploaded_files", "artifacts", "sandbox")
"""What a thread's state has once there were files; absent or empty in one that had none."""


class OfferedToolsMiddleware(AgentMiddleware[Any, Any]):
    """Takes the tools named ``need_files`` out of a call until the thread has files: uploads, what was handed over or
    made in the sandbox before, or what one of the tools named ``make_files`` has made in this turn."""

    def __init__(self, need_files: Collection[str], make_files: Collection[str]) -> None:
        super().__init__()
        self._need_files = frozenset(need_files)
        self._make_files = frozenset(make_files)

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """The call with the tools that can be of use."""
        if not self._need_files or self._has_files(request):
            return await handler(request)
        return await handler(request.override(tools=[tool for tool in request.tools if not self._needs(tool)]))

    def _has_files(self, request: ModelRequest[Any]) -> bool:
        state = cast("dict[str, Any]", request.state)
        return any(state.get(name) for name in _SIGNS) or any(
            isinstance(message, ToolMessage) and message.name in self._make_files for message in request.messages
        )

    def _needs(self, tool: Any) -> bool:
        return getattr(tool, "name", None) in self._need_files
