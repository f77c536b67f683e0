"""What a model thinks aloud is never part of an answer, however its pieces come (E04)."""

import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client
from tests.support.fake_llm import text

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    async with rack(postgres_url, valkey_url, f"reasoning_{worker_id}") as made:
        yield made


CASES = [
    pytest.param("<think>secret</think>24 bar.", "24 bar.", id="closed"),
    pytest.param("<think>secret never ends", "", id="unclosed"),
    pytest.param("<think>secret</think>", "", id="nothing after it"),
    pytest.param("24 bar.</think> Yes.", "24 bar. Yes.", id="orphan closer"),
    pytest.param("<think>a<think>secret</think>b</think>24 bar.", "24 bar.", id="nested"),
    pytest.param("<THINK>secret</Think>24 bar.", "24 bar.", id="case"),
    pytest.param("```\n<think>shown</think>\n```\nEnd", "```\n<think>shown</think>\n```\nEnd", id="code"),
    pytest.param("if a < b and c <d then", "if a < b and c < d then", id="less than"),
]


def pieces(said: str, seed: int) -> list[str]:
    """``said`` in pieces of 1 to 9 characters."""
    lengths = random.Random(seed)
    found = list[str]()
    while said:
        length = lengths.randint(1, 9)
        found.append(said[:length])
        said = said[length:]
    return found


@pytest.mark.parametrize("seed", [None, *range(5)])
@pytest.mark.parametrize(("said", "sent"), CASES)
async def test_e04_reasoning_is_not_sent_in_any_chunking(
    at: Rack, alice: Client, said: str, sent: str, seed: int | None
):
    at.llm.script(text("", tokens=list(said) if seed is None else pieces(said, seed)))
    seen = await alice.ask("How much?")
    done = seen.one("done")
    assert seen.text == sent
    assert (await alice.messages())[1]["content"] == sent
    assert done["status"] == "completed"
    assert ("empty_answer" in done["flags"]) == (sent == "")
    assert "secret" not in str(seen.events)
    await at.check(turns=1)
