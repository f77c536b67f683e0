"""How a turn's model calls end: a question to the user, or a budget of calls with a last one that has to answer."""

from collections.abc import Awaitable, Callable
from typing import Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse, hook_config
from langchain.agents.middleware.model_call_limit import ModelCallLimitMiddleware, ModelCallLimitState
from langchain_core.messages import AIMessage
from langgraph.runtime import Runtime

from backend.agents.context import AgentContext
from backend.catalogue import say


class CallLimitState(ModelCallLimitState[Any]):
    """``limit_reached`` is set in the update that ends the turn for want of budget."""

    limit_reached: NotRequired[bool]


class CallLimit(ModelCallLimitMiddleware[Any, Any]):
    """At most ``max_calls`` model calls a turn; the last of several may not call a tool.

    A turn that needed its last call, or would need more, carries ``limit_reached: True`` in a state update. When even
    the last call asks for a tool, the turn ends with a text of the catalogue, ``finish_reason`` ``limit``.
    """

    state_schema = CallLimitState  # pyright: ignore[reportAssignmentType]  # the base declares its own narrower type

    def __init__(self, max_calls: int) -> None:
        super().__init__(run_limit=max_calls, exit_behavior="end")
        self._max_calls = max_calls

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Ends the turn when the budget is spent."""
        ending = self.before_model(state, runtime)
        if ending is None:
            return None
        context: AgentContext = runtime.context
        message = AIMessage(
            content=say("limit_reached", context.language), response_metadata={"finish_reason": "limit"}
        )
        return {**ending, "messages": [message], "limit_reached": True}

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Forbids tools in the last call, so that the turn ends with what was found."""
        if self._is_last(request.state):
            request = request.override(tool_choice="none")
        return await handler(request)

    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Counts the call."""
        counted = self.after_model(state, runtime) or {}
        return {**counted, "limit_reached": True} if self._is_last(state) else counted

    def _is_last(self, state: Any) -> bool:
        calls: int = state.get("run_model_call_count", 0)
        return 0 < calls == self._max_calls - 1


class AskBack(AgentMiddleware[Any, Any]):
    """Ends the turn without a further model call once retrieval has a question to the user."""

    @hook_config(can_jump_to=["end"])
    async def abefore_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """All tool results of the step are there by now, so no call is left without one."""
        context: AgentContext = runtime.context
        return {"jump_to": "end"} if context.asks_back else None
