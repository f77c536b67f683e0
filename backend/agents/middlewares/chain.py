"""The rules of the agent's loop, in their order, as the one middleware that the agent library sees.

Each rule is an ordinary middleware and may stand alone. The library would make a node of the graph of each of their
hooks, which costs half a millisecond a time, and wrap each call in the bookkeeping of its vendor's tracing, which is
there even when nothing is traced. Here the hooks of all rules run within the one step of the model call.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NotRequired, cast, get_args, get_origin, get_type_hints

from langchain.agents import AgentState
from langchain.agents.middleware import AgentMiddleware, ExtendedModelResponse, ModelRequest, ModelResponse
from langchain_core.messages import ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from typing_extensions import TypedDict  # the standard one keeps no hints that are made at run time

Rule = AgentMiddleware[Any, Any]
State = dict[str, Any]
Updates = list[Mapping[str, Any]]
ModelHandler = Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
ToolHandler = Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]


class ChainState(AgentState[Any]):
    """``begun``: the hooks that run once before the agent have run."""

    begun: NotRequired[bool]


class Chain(Rule):
    """``rules``, the outermost first, by their ``abefore_agent``, ``abefore_model``, ``awrap_model_call``,
    ``aafter_model`` and ``awrap_tool_call``.

    Differs from the library's own composition in two ways. What a hook adds to the messages is told together with the
    answer, in front of it. A channel that several rules write in one step has the last of their values, so no two rules
    should share one.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        super().__init__()
        self.tools = [tool for rule in rules for tool in getattr(rule, "tools", ())]
        self.state_schema = _joined([*(rule.state_schema for rule in rules), ChainState])
        self._reducers = _reducers(self.state_schema)
        self._schemas: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._before_agent = [rule.abefore_agent for rule in _having(rules, "abefore_agent", "before_agent")]
        self._before_model = [rule.abefore_model for rule in _having(rules, "abefore_model", "before_model")]
        self._after_model = [rule.aafter_model for rule in _having(rules, "aafter_model", "after_model")][::-1]
        self._around_model = [rule.awrap_model_call for rule in _having(rules, "awrap_model_call")][::-1]
        self._around_tool = [rule.awrap_tool_call for rule in _having(rules, "awrap_tool_call")][::-1]

    async def awrap_model_call(self, request: ModelRequest[Any], handler: ModelHandler) -> ExtendedModelResponse[Any]:
        """The call within all rules, with what they have to say before and after it."""
        updates: Updates = []
        request, added = await self._prepared(request, updates)
        call: ModelHandler = partial(self._offering, handler)
        for rule in self._around_model:
            call = partial(_around, rule, call, updates)
        answer = await call(request)
        result = [*answer.result, *await self._followed(request, answer, updates)]
        update: State = {}
        for item in updates:
            update.update(item)
        return ExtendedModelResponse(
            model_response=ModelResponse(result=[*added, *result], structured_response=answer.structured_response),
            command=Command(update=update),
        )

    async def awrap_tool_call(self, request: ToolCallRequest, handler: ToolHandler) -> ToolMessage | Command[Any]:
        """The tool call within the rules that have something to say to it."""
        call: Any = handler
        for rule in self._around_tool:
            call = partial(rule, handler=call)
        return await call(request)

    async def _offering(self, handler: ModelHandler, request: ModelRequest[Any]) -> ModelResponse[Any]:
        """The call with the schemas of its tools, which the model would make anew each time."""
        for tool in request.tools:
            if id(tool) not in self._schemas:
                self._schemas[id(tool)] = (tool, convert_to_openai_tool(tool))  # with the tool, so that its id stays
        return await handler(request.override(tools=[self._schemas[id(tool)][1] for tool in request.tools]))

    async def _prepared(self, request: ModelRequest[Any], updates: Updates) -> tuple[ModelRequest[Any], list[Any]]:
        """The request as the hooks before it leave it, and the messages that they have added or replaced."""
        state = cast("State", request.state)
        hooks = [*([] if state.get("begun") else self._before_agent), *self._before_model]
        if self._before_agent and not state.get("begun"):
            updates.append({"begun": True})
        changed, added = {**state, "messages": request.messages}, list[Any]()
        for hook in hooks:
            update = await hook(cast("Any", changed), cast("Any", request.runtime))
            if not update:
                continue
            changed = self._merged(changed, update)
            added += update.get("messages", [])
            updates.append({name: value for name, value in update.items() if name != "messages"})
        if len(updates) == 0:
            return request, added
        return request.override(state=cast("Any", changed), messages=changed["messages"]), added

    async def _followed(self, request: ModelRequest[Any], answer: ModelResponse[Any], updates: Updates) -> list[Any]:
        """The messages that the hooks after the call put behind the answer."""
        added: list[Any] = []
        for hook in self._after_model:
            state = {**cast("State", request.state), "messages": [*request.messages, *answer.result, *added]}
            update = await hook(cast("Any", state), cast("Any", request.runtime))
            if update:
                added += update.get("messages", [])
                updates.append({name: value for name, value in update.items() if name != "messages"})
        return added

    def _merged(self, state: State, update: Mapping[str, Any]) -> State:
        merged = dict(state)
        for name, value in update.items():
            reduce = self._reducers.get(name)
            merged[name] = value if reduce is None else reduce(state.get(name), value)
        return merged


async def _around(
    rule: Callable[[ModelRequest[Any], ModelHandler], Awaitable[Any]],
    call: ModelHandler,
    updates: Updates,
    request: ModelRequest[Any],
) -> ModelResponse[Any]:
    """The call within one rule; what the rule writes into the state is added to ``updates``."""
    answer: Any = await rule(request, call)
    if isinstance(answer, ExtendedModelResponse):
        if answer.command is not None:
            updates.append(cast("Mapping[str, Any]", answer.command.update))
        return cast("ModelResponse[Any]", answer.model_response)  # pyright: ignore[reportUnknownMemberType]
    return cast("ModelResponse[Any]", answer) if isinstance(answer, ModelResponse) else ModelResponse(result=[answer])


def _having(rules: Sequence[Rule], *names: str) -> list[Rule]:
    """Those that have one of these methods themselves."""
    return [
        rule for rule in rules if any(getattr(type(rule), name) is not getattr(AgentMiddleware, name) for name in names)
    ]


def _joined(schemas: Sequence[Any]) -> type[Any]:
    """One schema with the fields of all, the later ones winning, as the library joins them."""
    fields: dict[str, Any] = {}
    for schema in schemas:
        fields |= get_type_hints(schema, include_extras=True)
    return cast("type[Any]", TypedDict("JoinedState", fields))  # pyright: ignore[reportArgumentType]  # made at run time


def _reducers(schema: Any) -> dict[str, Callable[[Any, Any], Any]]:
    """The functions that merge a new value into a channel, by its name."""
    found: dict[str, Callable[[Any, Any], Any]] = {}
    for name, hint in get_type_hints(schema, include_extras=True).items():
        while get_origin(hint) is not None and get_origin(hint) is not Annotated:
            hint = next(iter(get_args(hint)), None)  # what NotRequired and Required hold
        for extra in get_args(hint)[1:] if get_origin(hint) is Annotated else ():
            if callable(extra) and not isinstance(extra, type):
                found[name] = extra
    return found
