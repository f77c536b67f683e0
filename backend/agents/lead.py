"""The agent that answers a turn: model, tools and the rules of its loop, compiled once a process."""

from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any

import langsmith
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]  # a bare dict in its overloads
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph

from backend.agents.context import AgentContext
from backend.agents.middlewares.budget import PromptBudget
from backend.agents.middlewares.chain import Chain
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
    langsmith.set_runtime_overrides(aio_to_thread=_on_the_loop)
    rules = [AskBack(), CallLimit(max_model_calls), ConversationNote(), *([] if budget is None else [budget])]
    return create_agent(
        model,
        list(tools),
        system_prompt=system_prompt,
        middleware=[Chain(rules)],
        state_schema=ThreadState,
        context_schema=AgentContext,  # pyright: ignore[reportArgumentType]  # any object serves at run time
    )


async def _on_the_loop(
    _: Callable[..., Awaitable[Any]], context: Context, bookkeeping: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """The agent library wraps each middleware in a trace of its vendor's service, and even with none to send it to hops
    into a thread before and after it: two hops before a first token. The bookkeeping takes microseconds here."""
    return context.run(bookkeeping, *args, **kwargs)


def recursion_limit(max_model_calls: int) -> int:
    """Graph steps that ``max_model_calls`` never need, so that the call limit ends a turn, not the graph."""
    return _STEPS_PER_CALL * (max_model_calls + 2)
