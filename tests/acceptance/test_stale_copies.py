"""Copies in Redis that come too late, of two server processes: they hide no turn and bring nothing back (C01, C03)."""

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from sqlalchemy import URL

from backend.chat import session_cache
from tests.acceptance.metrics import metric
from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client, signed_in
from tests.support.fake_llm import raw, text
from tests.support.fake_llm_replies import delta, event
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
LATE_SECONDS = 1.5
"""Longer than a server waits for Redis: it has gone on when its command arrives there."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    async with rack(postgres_url, valkey_url, f"copies_{worker_id}", peer=True) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    await shared.reset()
    assert shared.peer is not None
    await shared.server.wait_ready()
    await shared.peer.wait_ready()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    async with at.user() as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def there(at: Rack, alice: Client) -> AsyncIterator[Client]:
    """The same account at the other worker."""
    assert at.peer is not None
    token = alice.http.headers["authorization"].removeprefix("Bearer ")
    async with signed_in(at.peer.url, alice.name, token) as client:
        yield client


class Held:
    """The next time a script is called, its bytes are kept back in front of Redis for ``LATE_SECONDS``."""

    def __init__(self, at: Rack, script: str) -> None:
        sha = hashlib.sha1(script.encode()).hexdigest()  # as Redis names it
        self._rule = at.redis.on_bytes(sha.encode(), LATE_SECONDS)

    async def begun(self) -> None:
        await asyncio.wait_for(self._rule.hit.wait(), 30)

    async def arrived(self) -> None:
        """The proxy's timer was set before this one, in the same loop."""
        await self.begun()
        await asyncio.sleep(LATE_SECONDS + 0.2)


def contents(messages: list[dict[str, str]]) -> list[str]:
    return [message["content"] for message in messages]


async def forget(at: Rack, pattern: str) -> None:
    async with Redis.from_url(at.valkey_url) as redis:
        if keys := await redis.keys(pattern):
            await redis.delete(*keys)


async def copies(at: Rack) -> bytes:
    """All that Redis holds of sessions, whatever its version."""
    async with Redis.from_url(at.valkey_url) as redis:
        found = [await redis.hvals(key) for key in await redis.keys("chat_messages:*")]
    return b" ".join(value for values in found for value in values)


async def gone(at: Rack, marker: bytes) -> bool:
    return marker not in await copies(at)


@pytest.mark.parametrize("change", ["turn", "deletion", "deletion and turn"])
async def test_c01_a_copy_that_comes_too_late_brings_nothing_back(at: Rack, alice: Client, there: Client, change: str):
    at.llm.script(text("first answer"), text("second answer"))
    await alice.ask("first")
    await alice.messages()
    await forget(at, "chat_messages:*")
    held = Held(at, session_cache._PUT)
    assert contents(await alice.messages()) == ["first", "first answer"]
    await held.begun()
    expected = ["first", "first answer"]
    if change != "turn":
        assert (await there.http.delete("/sessions/s")).status_code == 200
        expected = []
    if change != "deletion":
        await there.ask("second")
        expected += ["second", "second answer"]
    if change == "turn":

        async def copied() -> bool:
            await there.messages()
            return b"second answer" in await copies(at)

        await until(copied)
    await held.arrived()
    if change == "turn":
        assert b"second answer" in await copies(at), "the newer copy stays"
    else:
        await until(lambda: gone(at, b"first answer"), 90)  # a grave that Redis missed is dug within a minute
    for _ in range(2):
        assert contents(await there.messages()) == expected
        assert contents(await alice.messages()) == expected
    listed = [item["message_count"] for item in (await there.get("/sessions")).json()["sessions"]]
    assert listed == ([len(expected)] if expected else [])
    assert await metric(str(there.http.base_url), "cache_failures_total") == 0, "this worker does read Redis"
    await at.check()


@pytest.mark.parametrize("late", ["first", "second"])
async def test_c03_whichever_writer_is_late_the_next_prompt_misses_no_turn(
    at: Rack, alice: Client, there: Client, late: str
):
    words = [event(delta({"content": f"answer {number}"})) for number in (2, 3)]
    end = [0.5, event(delta({}, finish="stop")), b"data: [DONE]\n\n"]
    at.llm.script(text("answer 1"), raw(words[0], *end), raw(words[1], *end), text("answer 4"), text("answer 5"))
    await alice.ask("question 1")
    await alice.messages()
    for number, client in ((2, alice), (3, there)):
        async with client.stream(f"question {number}") as stream:
            await stream.until_text("answer")
            if (number == 2) == (late == "first"):  # this end of a turn reaches Redis after the other one
                held = Held(at, session_cache._WRITE_THROUGH)
            await stream.end()
    await held.arrived()
    whole = [f"{kind} {number}" for number in range(1, 4) for kind in ("question", "answer")]
    for client in (alice, there):
        assert contents(await client.messages()) == whole
    for number, client in ((4, there), (5, alice)):
        await client.ask(f"question {number}")
        assert contents(at.llm.chats[-1].messages[1:]) == [*whole, f"question {number}"]
        whole += [f"question {number}", f"answer {number}"]
    for client in (alice, there):
        assert contents(await client.messages()) == whole
    await at.check(turns=5)
