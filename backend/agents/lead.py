"""The agent that answers a turn: model, tools and the rules of its loop, compiled once a process."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import langsmith
from langchain.agents import create_agent  # pyright: ignore[reportUnknownVariableType]  # a bare dict in its overloads
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import BaseTool
from langgraph.graph.state import CompiledStateGraph

from backend.agents.context import AgentContext
from backend.agents.middlewares.budget import PromptBudget
from backend.agents.middlewares.chain import Chain, Rule
from backend.agents.middlewares.finish import AskBack, CallLimit
from backend.agents.middlewares.note import ConversationNote
from backend.agents.middlewares.offered_tools import OfferedToolsMiddleware
from backend.agents.middlewares.sandbox import SandboxMiddleware
from backend.agents.middlewares.thread_data import Locate, ThreadDataMiddleware
from backend.agents.middlewares.title import TitleMiddleware
from backend.agents.middlewares.todos import TodosMiddleware
from backend.agents.middlewares.uploads import Listing, UploadsMiddleware
from backend.agents.middlewares.view_image import ViewImageMiddleware
from backend.agents.thread_state import ThreadState
from backend.sandbox.base import SandboxProvider

LeadAgent = CompiledStateGraph[Any, Any, Any, Any]

_STEPS_PER_CALL = 8
"""Graph steps of one model call with its hooks and tools, generously."""


@dataclass(frozen=True, slots=True)
class Threads:
    """What turns with files need. ``locate`` finds a thread's directories, ``list_files`` its uploads; the tools named
    ``sandboxed`` run in its sandbox; ``title`` makes a title of a first question. The tools named ``need_files`` are
    offered where there are files, those named ``make_files`` make some."""

    locate: Locate
    sandboxes: SandboxProvider
    sandboxed: Collection[str]
    title: Callable[[str], str]
    list_files: Listing | None = None
    need_files: Collection[str] = ()
    make_files: Collection[str] = ()
    lazy: bool = True


def rules_of_the_loop(max_model_calls: int, budget: PromptBudget | None, threads: Threads | None) -> list[Rule]:
    """Every middleware, the outermost first. Without ``threads`` nothing needs a thread id."""
    return [
        *([] if threads is None else _of_threads(threads)),
        AskBack(),
        CallLimit(max_model_calls),
        ConversationNote(),
        *([] if budget is None else [budget]),
        ViewImageMiddleware(),  # the innermost: what makes a prompt shorter must not take the image for the question
    ]


def _of_threads(threads: Threads) -> list[Rule]:
    return [
        ThreadDataMiddleware(threads.locate, lazy=threads.lazy),
        SandboxMiddleware(threads.sandboxes, threads.sandboxed, lazy=threads.lazy),
        TitleMiddleware(threads.title),  # before the files are listed in the question
        UploadsMiddleware(threads.list_files),
        TodosMiddleware(),
        OfferedToolsMiddleware(threads.need_files, threads.make_files),
    ]


def build_lead_agent(
    model: BaseChatModel,
    tools: Sequence[BaseTool],
    *,
    system_prompt: str,
    max_model_calls: int,
    budget: PromptBudget | None = None,
    threads: Threads | None = None,
) -> LeadAgent:
    """The compiled agent. It holds nothing of a turn: the turn's ``AgentContext`` is passed to each run."""
    langsmith.set_runtime_overrides(aio_to_thread=_on_the_loop)
    return create_agent(
        model,
        list(tools),
        system_prompt=system_prompt,
        middleware=[Chain(rules_of_the_loop(max_model_calls, budget, threads))],
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
