"""Every script of the tests of providers, byte by byte: a turn that ends as it must, and an ordinary one after it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack
from tests.acceptance.test_provider_faults import CUT, REFUSED
from tests.acceptance.test_provider_quirks import (
    EMPTY,
    LATE,
    NO_CHOICES,
    NO_DELTA,
    NOTICES,
    NULL_DELTA,
    PIECES,
    REASONS,
    STOP,
    USAGE,
    calling,
)
from tests.acceptance.test_reasoning import CASES, pieces
from tests.chaos.rig import NOBODY_DIES, Trial, pair
from tests.infra.llm.test_openai_tool_calls import BROKEN, EXACT, TWO
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import Reply, Request, chunks, hang_after, reset_after, status, text
from tests.support.fake_llm_replies import Step, delta

pytestmark = pytest.mark.asyncio(loop_scope="session")
ENV = {**NOBODY_DIES, "LLM_IDLE_SECONDS": "3", "LLM_FIRST_BYTE_SECONDS": "5", "LLM_TOTAL_SECONDS": "60"}
PLAIN = "An ordinary answer."
HALF_A_CALL = {
    "index": 0,
    "id": "c",
    "type": "function",
    "function": {"name": "get_current_weather", "arguments": '{"q'},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    async with pair(postgres_url, valkey_url, f"chaos_llm_{worker_id}", ENV) as made:
        yield made


def odd_chunks() -> dict[str, Reply]:
    bodies = [*PIECES, STOP]
    odd = {"[]": EMPTY, "none": NO_CHOICES, "no delta": NO_DELTA, "null delta": NULL_DELTA}
    return {
        f"{name} at {place}": chunks(*bodies[:place], chunk, *bodies[place:], {**EMPTY, "usage": USAGE})
        for name, chunk in odd.items()
        for place in (0, 2, 5, 6)
    }


def reasons() -> dict[str, Reply]:
    found: dict[str, Reply] = {}
    for reason in REASONS:
        found[f"{reason} with text"] = text("Some text.", finish=reason)
        found[f"{reason} without text"] = text("", tokens=[], finish=reason)
        found[f"{reason} with half a call"] = chunks(delta({"tool_calls": [HALF_A_CALL]}), delta({}, finish=reason))
    return found


def waits() -> dict[str, Reply]:
    tomorrow = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
    headers = [{"retry-after": "1"}, {"retry-after-ms": "300"}, {}, {"retry-after": "86400"}, {"retry-after": tomorrow}]
    return {f"429 {given}": status(429, None, given) for given in headers}


def scripts(seed: int) -> dict[str, Reply]:
    """What a provider may say to the first call of a turn, by the case that it is of."""
    calls = {**EXACT, **TWO, **BROKEN}
    groups: dict[str, dict[str, Reply]] = {
        "E01": odd_chunks(),
        "E02": {name: calling(fragments) for name, fragments in calls.items()},
        "E04": {str(case.id): text("", tokens=pieces(str(case.values[0]), seed)) for case in CASES},
        "E06": {**{f"first {name}": reply for name, reply in NOTICES.items()}, **LATE},
        "E07": reasons(),
        "E09": waits(),
        "E12": {name: reply for name, (reply, _) in {**REFUSED, **CUT}.items()},
        "no answer": {"reset": reset_after(0), "silence": hang_after(0)},
    }
    return {f"{case} {name}": reply for case, group in groups.items() for name, reply in group.items()}


def byte_by_byte(reply: Reply) -> Reply:
    """The same, each byte in a write of its own."""

    def steps(request: Request) -> list[Step]:
        return [
            piece
            for step in reply.steps(request)
            for piece in ([step[at : at + 1] for at in range(len(step))] if isinstance(step, bytes) else [step])
        ]

    return Reply(steps)


def provider(spoken: dict[str, Reply]) -> Any:
    """Answers the first call of the turn of each script by it, every other one as usual."""

    def answer(request: Request) -> Reply:
        last = request.messages[-1]
        script = spoken.get(str(last["content"])) if last["role"] == "user" else None
        return text(PLAIN) if script is None else script

    return answer


def ended_well(stream: Stream) -> None:
    """One end, told as the protocol says it."""
    assert stream.done
    done = stream.one("done")
    assert done["status"] in {"completed", "failed"}
    assert (stream.of("error") != []) == (done["status"] == "failed")
    assert len(stream.of("trace")) == len(stream.of("citations")) == 1
    if done["status"] == "failed":
        assert stream.one("error")["code"].startswith("provider_") or stream.one("error")["code"] == "content_filtered"


async def play(client: Client, there: Client, scripts: list[tuple[int, str]], seen: list[Stream]) -> None:
    """Each script in a session of its own and an ordinary turn after it; the other worker shows both."""
    for number, name in scripts:
        session = f"s{number}"
        stream = await client.ask(name, session)
        ended_well(stream)
        after = await client.ask("And now?", session)
        assert (after.text, after.one("done")["status"]) == (PLAIN, "completed"), name
        assert [item["content"] for item in await there.messages(session)] == [name, stream.text, "And now?", PLAIN]
        seen += [stream, after]


async def test_provider(trial: Trial, alice: tuple[Client, Client]):
    """Every script of a provider, byte by byte, then an ordinary turn"""
    spoken = {name: byte_by_byte(reply) for name, reply in scripts(trial.random.randrange(1000)).items()}
    names = list(enumerate(spoken))
    trial.random.shuffle(names)
    del names[trial.size(len(names), 12) :]
    trial.at.llm.default = provider(spoken)
    seen: list[Stream] = []
    here, there = alice
    await asyncio.gather(play(here, there, names[::2], seen), play(there, here, names[1::2], seen))
    assert len(seen) == 2 * len(names)
    trial.note("scripts", len(names))
    await trial.check(*seen, turns=len(seen))
