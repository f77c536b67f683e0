"""The agent that answers a turn: model, tools and the rules of its loop, compiled once a process."""

from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]  # a bare dict in its overloads
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph

from backend.agents.context import AgentContext
from backend.agents.middlewares.budget import PromptBudget
from backend.agents.middlewares.finish import AskBack, CallLimit
from backend.agents.middlewares.note import ConversationNote
from backend.agents.thread_state import ThreadState

LeadAgent = CompiledStateGraph[Any, Any, Any, Any]

_STEPS_PER_CALL = 8
"""Graph steps of one model call with its hooks and tools, generously."""


def build_lead_agent(
    model: BaseChatModel,
    tools: Sequence[BaseTool],
    *,
    system_prompt: str,
    max_model_calls: int,
    budget: PromptBudget | None = None,
) -> LeadAgent:
    """The compiled agent. It holds nothing of a turn: the turn's ``AgentContext`` is passed to each run."""
    return create_agent(
        model,
        list(tools),
        system_prompt=system_prompt,
        middleware=[AskBack(), CallLimit(max_model_calls), ConversationNote(), *([] if budget is None else [budget])],
        state_schema=ThreadState,
        context_schema=AgentContext,  # pyright: ignore[reportArgumentType]  # any object serves at run time
    )


def recursion_limit(max_model_calls: int) -> int:
    """Graph steps that ``max_model_calls`` never need, so that the call limit ends a turn, not the graph."""
    return _STEPS_PER_CALL * (max_model_calls + 2)
