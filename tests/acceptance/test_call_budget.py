"""A model that never stops calling tools (F01): the turn ends with an answer, or with a text that says so."""

import itertools
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from sqlalchemy import URL

from backend.catalogue import say
from tests.acceptance.asking import QUESTION, upload
from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client
from tests.support.fake_llm import Reply, Request, text, tool_call
from tests.support.server import free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
MAX_CALLS = 5
SEARCH = ("search_knowledge_base", {"query": QUESTION})
WEATHER = ("get_current_weather", {"location": "Oslo"})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    env = {"LLM_MAX_CALLS_PER_TURN": str(MAX_CALLS), "WEATHER_BASE_URL": f"http://127.0.0.1:{free_port()}"}
    async with rack(postgres_url, valkey_url, f"budget_{worker_id}", env) as made:
        yield made


def called_for_ever(*calls: tuple[str, dict[str, str]], obeys: bool) -> Callable[[Request], Reply]:
    """These calls in turn; a model that ``obeys`` answers when tools are forbidden."""
    numbers = itertools.count()

    def reply(request: Request) -> Reply:
        if obeys and request.body.get("tool_choice") == "none":
            return text("It lasts 24 months [1].")
        number = next(numbers)
        name, args = calls[number % len(calls)]
        return tool_call(name, args, id=f"call_{number}")

    return reply


@pytest.mark.parametrize("calls", [[SEARCH], [SEARCH, WEATHER]], ids=["same", "alternating"])
@pytest.mark.parametrize("obeys", [True, False])
async def test_f01_a_model_that_calls_tools_for_ever(
    at: Rack, alice: Client, calls: list[tuple[str, dict[str, str]]], obeys: bool
):
    await upload(alice)
    at.llm.default = called_for_ever(*calls, obeys=obeys)
    seen = await alice.ask(QUESTION)
    done = seen.one("done")
    assert (done["status"], done["flags"]) == ("completed", ["limit_reached"])
    assert done["finish_reason"] == ("stop" if obeys else "limit")
    assert seen.text == ("It lasts 24 months [1]." if obeys else say("limit_reached"))
    assert len(at.llm.chats) == MAX_CALLS
    assert len(at.llm.decisions("grade")) == 1, "one search a turn"
    assert len(seen.one("citations")["citations"]) == (1 if obeys else 0)
    assert seen.one("trace")["rag_trace"]["tool_used"] is True
    assert (await alice.messages())[-1]["flags"] == ["limit_reached"]
    at.llm.default = None
    assert (await alice.ask("And the other one?")).one("done")["flags"] == []
    await at.check(turns=2)
