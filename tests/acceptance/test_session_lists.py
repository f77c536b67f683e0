"""Titles by rule and long lists (G01, G04)."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.running import Running, running
from tests.chat.stored import counted
from tests.support.chat_client import Client
from tests.support.fake_llm import hang_after

pytestmark = pytest.mark.asyncio(loop_scope="module")
SESSIONS = 2_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    limits = {"max_message_chars": 250_000, "max_body_bytes": 2_000_000, "prompt_max_tokens": 200_000}
    async with running(postgres_url, valkey_url, f"lists_{worker_id}", **limits) as made:
        yield made


# --- G01 ---

EMOJI = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
TITLES = [
    ("How long?", "How long?"),
    ("x" * 200_000, "x" * 79 + "…"),
    (EMOJI * 100, EMOJI * 79 + "…"),
    ("😀", "😀"),
    ("<img src=x onerror=alert(1)><b>bold</b>", "<img src=x onerror=alert(1)><b>bold</b>"),
    ("a\x00b\r\nc\u2028d\te\u202ef", "ab c d e f"),
    ("\x00\n \u200b.", "."),
    ("{{7*7}} %s ${x} {0.__class__}", "{{7*7}} %s ${x} {0.__class__}"),
    ("<think>Alright</think>", "<think>Alright</think>"),
    ('{"title": "x"}', '{"title": "x"}'),
]


@pytest.mark.parametrize(("message", "title"), TITLES, ids=lambda value: ascii(value)[:30])
async def test_g01_the_title_is_one_short_line_of_the_first_message(
    at: Running, alice: Client, message: str, title: str
):
    seen = await alice.ask(message)
    assert seen.one("session_title")["title"] == title
    assert seen.types[:3] == ["run_started", "rag_step", "session_title"]
    await alice.ask("second")
    (listed,) = (await alice.get("/sessions")).json()["sessions"]
    assert listed["title"] == title


async def test_g01_a_message_of_spaces_only_makes_no_session(at: Running, alice: Client):
    for message in ("", " \n\t", "\x00", "\u3000"):
        answer = await alice.post("/chat", {"message": message})
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_error")
    assert (await alice.get("/sessions")).json()["sessions"] == []


async def test_g01_the_title_waits_for_no_model(at: Running, alice: Client):
    at.llm.script(hang_after(0))
    async with alice.stream("What now?") as stream:
        await stream.until_type("session_title")
        assert (await alice.get("/sessions")).json()["sessions"][0]["title"] == "What now?"
        await alice.stop(stream.run_id)
    assert len(at.llm.chats) <= 1


RENAMED = [
    ("Pumps", "Pumps"),
    ("  two\nlines\r\n and\u2028more\x00 ", "two lines and more"),
    ("{{7*7}} %s ${x} {0.__class__}", "{{7*7}} %s ${x} {0.__class__}"),
    ("<b>x</b>", "<b>x</b>"),
    ("\ud83d", "\ufffd"),
]


@pytest.mark.parametrize(("title", "stored"), RENAMED, ids=lambda value: ascii(value)[:30])
async def test_g01_a_given_title_is_one_line_too(at: Running, alice: Client, title: str, stored: str):
    await alice.ask("x")
    answer = await alice.http.patch(
        "/sessions/s", content=json.dumps({"title": title}), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200
    assert answer.json()["title"] == stored
    assert (await alice.get("/sessions")).json()["sessions"][0]["title"] == stored
    seen = await alice.ask("second")
    assert seen.of("session_title") == []
    assert (await alice.get("/sessions")).json()["sessions"][0]["title"] == stored


@pytest.mark.parametrize("title", ["", "   ", "\x00", "\n", "x" * 201, 5, None])
async def test_g01_what_is_no_title_is_refused(at: Running, alice: Client, title: object):
    await alice.ask("x")
    answer = await alice.http.patch("/sessions/s", json={"title": title})
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_error")
    assert (await alice.get("/sessions")).json()["sessions"][0]["title"] == "x"


# --- G04 ---


@pytest_asyncio.fixture(loop_scope="module")
async def many(at: Running, alice: Client) -> Client:
    """A user with ``SESSIONS`` sessions of six messages; several were changed at the same moment."""
    await at.sql(
        """
        with made as (
            insert into chat_sessions (user_id, session_id, title, title_source, message_count, last_seq, updated_at)
            select u.id, 'n' || n, repeat('title ', 13), 'rule', 6, 6,
                timestamptz '2026-01-01' + (n / 7) * interval '1 min'
            from users u, generate_series(1, cast(:sessions as int)) n where u.username = :name
            returning id
        )
        insert into chat_messages (session_row_id, seq, type, content)
        select id, m, case m % 2 when 1 then 'human' else 'ai' end, repeat('text ', 200)
        from made, generate_series(1, 6) m
        """,
        sessions=SESSIONS,
        name=alice.name,
    )
    await at.sql("analyze chat_sessions")
    await at.sql("analyze chat_messages")
    return alice


async def test_g04_a_page_costs_three_statements_whatever_there_is(at: Running, many: Client):
    cursor = {}
    for goes_on, at_most in ((False, 3), (False, 2), (True, 3)):
        params = {"limit": 50, **(cursor if goes_on else {})}
        with counted(at.services.engine, of_requests=True) as seen:
            page = await many.get("/sessions", params=params)
        assert page.status_code == 200
        assert len(page.json()["sessions"]) == 50
        assert len(page.content) < 100_000
        assert 0 < seen.count <= at_most, seen.texts
        assert not [item for item in seen.texts if "chat_messages" in item]
        cursor = {"cursor": page.json()["next_cursor"]}


async def test_g04_the_index_gives_the_order(at: Running, many: Client):
    with counted(at.services.engine, of_requests=True) as seen:
        first = (await many.get("/sessions", params={"limit": 50})).json()
    with counted(at.services.engine, of_requests=True) as after:
        await many.get("/sessions", params={"limit": 50, "cursor": first["next_cursor"]})
    (user,) = (await at.sql("select id from users where username = :name", name=many.name))[0]
    ((when, row_id),) = await at.sql(
        "select updated_at, id from chat_sessions order by updated_at desc offset 49 limit 1"
    )
    values = {"user": [user, 51], "below": [user, when, row_id, 51]}
    for texts, given in ((seen.texts, values["user"]), (after.texts, values["below"])):
        (query,) = [item for item in texts if "FROM chat_sessions" in item]
        for number, value in reversed(list(enumerate(given, start=1))):
            literal = str(value) if isinstance(value, int) else f"'{value}'"
            query = query.replace(f"${number}::UUID", literal).replace(f"${number}", literal)
        plan = "\n".join(row[0] for row in await at.sql(f"explain {query.replace(':', chr(92) + ':')}"))
        assert "ix_chat_sessions_recent" in plan, plan
        assert "Sort" not in plan, plan
        assert "Seq Scan" not in plan, plan


@pytest.mark.parametrize("limit", [200, 33])
async def test_g04_paging_gives_each_session_exactly_once(at: Running, many: Client, limit: int):
    names, cursor, pages = [], None, 0
    while True:
        params = {"limit": limit, **({"cursor": cursor} if cursor else {})}
        page = (await many.get("/sessions", params=params)).json()
        names += [item["session_id"] for item in page["sessions"]]
        cursor, pages = page["next_cursor"], pages + 1
        if cursor is None:
            break
    assert len(names) == len(set(names)) == SESSIONS
    numbers = [int(name[1:]) // 7 for name in names]
    assert numbers == sorted(numbers, reverse=True)
    assert pages == -(-SESSIONS // limit)


async def test_g04_what_changes_while_paging_is_neither_lost_nor_doubled_below(at: Running, many: Client):
    first = (await many.get("/sessions", params={"limit": 200})).json()
    await many.ask("new", "brand-new")
    await many.ask("again", "n1500")  # below the cursor until now
    names, cursor = [item["session_id"] for item in first["sessions"]], first["next_cursor"]
    while cursor:
        page = (await many.get("/sessions", params={"limit": 200, "cursor": cursor})).json()
        names += [item["session_id"] for item in page["sessions"]]
        cursor = page["next_cursor"]
    assert len(names) == len(set(names)) == SESSIONS - 1
    top = (await many.get("/sessions")).json()["sessions"]
    assert [item["session_id"] for item in top[:2]] == ["n1500", "brand-new"]


async def test_g04_messages_are_paged_backwards_without_a_gap(at: Running, alice: Client):
    await at.sql(
        "with s as (insert into chat_sessions (user_id, session_id, message_count, last_seq)"
        " select id, 's', 1203, 1203 from users returning id)"
        " insert into chat_messages (session_row_id, seq, type, content)"
        " select id, n, 'human', 'm' || n from s, generate_series(1, 1203) n"
    )
    contents, before, pages = list[str](), None, 0
    while True:
        page = (await alice.get("/sessions/s", params={"before": before} if before else {})).json()
        contents = [item["content"] for item in page["messages"]] + contents
        before, pages = page["next_before"], pages + 1
        if before is None:
            break
    assert (contents, pages) == ([f"m{n}" for n in range(1, 1204)], 3)
