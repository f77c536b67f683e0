"""The worker of a turn is killed: its session is repaired and readable within lease and a moment, at any point."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.acceptance.asking import good, upload
from tests.acceptance.test_restart import flushed
from tests.chaos.plugin import SEED
from tests.chaos.rig import HALF, NEVER, WORDS, Trial, asking
from tests.support.chat_client import Client
from tests.support.fake_llm import Reply, hang_after, raw, text, tool_call, wait
from tests.support.fake_llm_replies import delta, event
from tests.support.fault_proxy import Fault
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")
QUESTION = "How long is the warranty of pump 4711?"
Reached = Callable[[], Awaitable[object]]


def held(event_to_come: asyncio.Event) -> Reply:
    """All of the answer, and its end when the event has come."""
    words = (event(delta({"content": f"{word} "})) for word in WORDS.split())
    return raw(*words, event_to_come, event(delta({}, finish="stop")), b"data: [DONE]\n\n")


async def after_the_claim(trial: Trial, _: Client) -> Reached:
    """The turn is stored; its worker does not know."""
    trial.at.llm.script(text("Never asked for."))
    return trial.at.postgres.on_bytes(QUESTION.encode(), "mute").hit.wait


async def while_it_retrieves(trial: Trial, client: Client) -> Reached:
    await upload(client)
    trial.at.llm.script(tool_call("search_knowledge_base", {"query": QUESTION}))
    trial.at.llm.decide("grade", wait(NEVER, good()))
    return lambda: until(lambda: trial.at.llm.decisions("grade"))


async def at_the_first_token(trial: Trial, _: Client) -> Reached:
    trial.at.llm.script(hang_after(0))
    return lambda: trial.at.llm.wait_for_chats(1)


async def at_token_five(trial: Trial, _: Client) -> Reached:
    trial.at.llm.script(hang_after(5))
    return lambda: flushed(trial.at.database, "five")


def at_its_end(trial: Trial, fault: Fault) -> Reached:
    """The text is stored, and the fault meets the statement that ends the turn."""
    ends = asyncio.Event()
    trial.at.llm.script(held(ends))
    rule = trial.at.postgres.on_bytes(WORDS.encode(), fault)

    async def reached() -> None:
        await flushed(trial.at.database, "ten ")
        ends.set()
        await rule.hit.wait()

    return reached


async def before_the_commit(trial: Trial, _: Client) -> Reached:
    """The end of the turn is on its way to the database, and never comes there."""
    return at_its_end(trial, "blackhole")


async def before_done(trial: Trial, _: Client) -> Reached:
    """The end of the turn is stored; its worker does not know."""
    reached = at_its_end(trial, "mute")

    async def stored() -> None:
        await reached()
        await until(lambda: completed(trial))

    return stored


async def run_of(trial: Trial) -> str:
    """The id of the run, empty before there is one."""
    return "".join(str(row[0]) for row in await trial.at.sql("select id from runs"))


async def completed(trial: Trial) -> bool:
    return bool(await trial.at.sql("select 1 from runs where status = 'completed'"))


POINTS: dict[str, tuple[Callable[[Trial, Client], Awaitable[Reached]], str, str]] = {
    "after the claim": (after_the_claim, "interrupted", ""),
    "during retrieval": (while_it_retrieves, "interrupted", ""),
    "before the first token": (at_the_first_token, "interrupted", ""),
    "at token 5": (at_token_five, "interrupted", HALF),
    "between last token and commit": (before_the_commit, "interrupted", WORDS),
    "between commit and done": (before_done, "completed", WORDS),
}


THEN = ["it returns", "it stays away"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every point with and without the worker's return; in the short form each point once."""
    ways = [(point, then) for point in POINTS for then in THEN]
    if SEED not in metafunc.config.stash:
        ways = [(point, THEN[place % 2]) for place, point in enumerate(POINTS)]
    metafunc.parametrize(("point", "then"), ways, ids=[", ".join(way) for way in ways])


async def test_killed(trial: Trial, alice: tuple[Client, Client], point: str, then: str):
    """kill -9 of the owner of a turn"""
    here, there = alice
    reached, status, content = POINTS[point]
    holds = await reached(trial, here)
    async with asking(here, QUESTION, "k") as stream:
        await holds()
        await until(lambda: run_of(trial))
        run_id = await run_of(trial)
        async with there.follow(run_id) as elsewhere:
            await trial.owner.kill9()
            killed_at = time.monotonic()
            if then == THEN[0]:
                await trial.owner.start(wait=False)
            await elsewhere.end()
            trial.note("repaired_seconds", time.monotonic() - killed_at)
    assert (elsewhere.text, elsewhere.done, elsewhere.one("done")["status"]) == (content, True, status)
    assert elsewhere.types[-1] == "done"
    assert [(message["content"], message["status"]) for message in await there.messages()] == [
        (QUESTION, "completed"),
        (content, status),
    ]
    calls = len(trial.at.llm.chats)
    again = await there.ask(QUESTION, key="k")
    assert (again.run_id, again.text) == (run_id, content)
    assert len(trial.at.llm.chats) == calls, "a retry is that turn"
    trial.at.llm._scripts.clear()
    trial.at.llm._decisions.clear()
    trial.at.llm.script(text("And on."))
    assert (await there.ask("Go on.")).text == "And on."
    if then == THEN[0]:
        await trial.owner.wait_ready()
        assert await here.messages() == await there.messages()
    else:
        await trial.owner.start()
    await trial.check(elsewhere, again, *stream, turns=2)
