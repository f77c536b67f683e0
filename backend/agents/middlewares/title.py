"""The title of a thread, by rule."""

from collections.abc import Callable
from typing import Any, NotRequired

from langchain.agents import AgentState
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage
from langgraph.runtime import Runtime


class TitleSchema(AgentState[Any]):
    """What this rule writes."""

    title: NotRequired[str | None]


class TitleMiddleware(AgentMiddleware[Any, Any]):
    """Writes ``title`` on a thread's first turn, by ``rule`` from the first question; never over one that is there."""

    state_schema = TitleSchema

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        self._rule = rule

    async def abefore_agent(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """The title, if there is none."""
        if state.get("title"):
            return None
        asked = next((item for item in state["messages"] if isinstance(item, HumanMessage)), None)
        return None if asked is None else {"title": self._rule(str(asked.text))}
