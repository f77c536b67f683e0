"""The plan of a turn with many steps: the library's own list, its rules short and in plain text."""

from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import ModelRequest, ModelResponse, TodoListMiddleware

TODO_RULES = (
    "Keeps your plan for a task of three or more steps; not for simpler ones. Give the whole list each time, with one "
    "item in_progress, and mark an item completed as soon as it is done. Call it alone, at most once in a step."
)


class TodosMiddleware(TodoListMiddleware[Any, Any]):
    """``write_todos`` and its check of parallel calls. What is to be known of it is said in the tool's description
    alone: a part of the rules as a list of blocks, as the library writes it, is refused by some providers."""

    def __init__(self) -> None:
        super().__init__(system_prompt="", tool_description=TODO_RULES)

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """The call as it is."""
        return await handler(request)
