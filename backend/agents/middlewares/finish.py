"""How a turn's model calls end: a question to the user, or a budget of calls with a last one that has to answer.

Both wrap the call: a hook before or after it would be a node of the graph, which costs half a millisecond each time.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NotRequired, cast

from langchain.agents import AgentState
from langchain.agents.middleware import AgentMiddleware, ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage
from langgraph.types import Command

from backend.agents.context import AgentContext
from backend.catalogue import say

Handler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]


class CallLimitState(AgentState[Any]):
    """``model_calls`` counts those of a turn; ``limit_reached`` comes with the one that ends it for want of budget."""

    model_calls: NotRequired[int]
    limit_reached: NotRequired[bool]


class CallLimit(AgentMiddleware[Any, Any]):
    """At most ``max_calls`` model calls a turn; the last of several may not call a tool.

    A turn that needed its last call, or would need more, carries ``limit_reached: True`` in a state update. When even
    the last call asks for a tool, the turn ends with a text of the catalogue, ``finish_reason`` ``limit``.
    """

    state_schema = CallLimitState

    def __init__(self, max_calls: int) -> None:
        super().__init__()
        self._max_calls = max_calls

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> ExtendedModelResponse[Any]:
        """Counts the call; forbids tools in the last one, so that the turn ends with what was found."""
        calls: int = cast("Any", request.state).get("model_calls", 0)
        if calls >= self._max_calls:
            message = AIMessage(
                content=say("limit_reached", _context(request).language), response_metadata={"finish_reason": "limit"}
            )
            return _response(ModelResponse(result=[message]), limit_reached=True)
        if 0 < calls == self._max_calls - 1:
            answer = await handler(request.override(tool_choice="none"))
            return _response(answer, model_calls=calls + 1, limit_reached=True)
        return _response(await handler(request), model_calls=calls + 1)


class AskBack(AgentMiddleware[Any, Any]):
    """Ends the turn without a further model call once retrieval has a question to the user."""

    async def awrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> ModelResponse[Any]:
        """All tool results of the step are there by now; an answer without text and calls ends the agent."""
        if _context(request).asks_back:
            return ModelResponse(result=[AIMessage(content="")])
        return await handler(request)


def _context(request: ModelRequest[Any]) -> AgentContext:
    return cast("Any", request.runtime).context


def _response(response: ModelResponse[Any], **update: Any) -> ExtendedModelResponse[Any]:
    return ExtendedModelResponse(model_response=response, command=Command(update=update))
