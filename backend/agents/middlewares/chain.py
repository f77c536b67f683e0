"""The rules around each model call, in their order, as the one middleware that the agent library sees.

It would wrap each of them in the bookkeeping of its vendor's tracing, which is there even when nothing is traced.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ExtendedModelResponse, ModelRequest, ModelResponse

from backend.agents.middlewares.finish import CallLimitState, Handler


class Chain(AgentMiddleware[Any, Any]):
    """``rules``, the outermost first; each only has an ``awrap_model_call``."""

    state_schema = CallLimitState

    def __init__(self, rules: Sequence[AgentMiddleware[Any, Any]]) -> None:
        super().__init__()
        self._rules = tuple(reversed(rules))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Handler
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """The call within all rules."""
        inner: Any = handler
        for rule in self._rules:
            inner = partial(rule.awrap_model_call, handler=inner)
        return await inner(request)
