"""The conversation storage on a real PostgreSQL and a real Valkey (C16, F14-F24)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat import run_repository
from backend.chat.records import TurnEnd
from backend.errors import IdempotencyConflict, RunActive, StaleHitl, TooManyRuns, Unauthorized
from backend.infra.database.engine import transaction
from backend.schemas.chat import MessageInfo
from tests.chat.stored import WORKER, Stored, counted, stored_conversations
from tests.chat.workers import new_user

TRACE = {"query": "q", "retrieved_chunks": [{"filename": "a.pdf", "text": "t"}]}


@pytest.fixture
async def at(engine: AsyncEngine, redis_url: str) -> AsyncIterator[Stored]:
    async with stored_conversations(engine, redis_url) as made:
        yield made


# --- helpers (F14-F17) ---


async def test_the_cache_keys_name_user_and_session(at: Stored):
    user = UUID("01900000-0000-7000-8000-000000000001")
    assert at.storage._messages_cache_key(user, "a:b") == f"chat_messages:{user}:a:b"
    assert at.storage._sessions_cache_key(user) == f"chat_sessions:{user}"


async def test_records_become_messages_of_their_kind(at: Stored):
    await at.sql(
        "with s as (insert into chat_sessions (user_id, session_id) values (:user, 'k') returning id)"
        " insert into chat_messages (session_row_id, seq, type, content)"
        " select id, seq, type, 'c' || seq from s, (values (1, 'system'), (2, 'human'), (3, 'ai')) v(seq, type)",
        user=at.user.id,
    )
    records = await at.storage.get_session_messages(at.user.id, "k")
    messages = at.storage._to_langchain_messages(records)
    assert [type(item) for item in messages] == [SystemMessage, HumanMessage, AIMessage]
    assert [(item.content, item.id) for item in messages] == [(item.content, item.id) for item in records]


async def test_records_are_normalized_whatever_wrote_them(at: Stored):
    await at.turn()
    question, answer = await at.storage.get_session_messages(at.user.id, "s")
    old = answer.model_copy(update={"rag_trace": {**TRACE, "gone_field": 1, "recall_count": "many"}})
    assert [item.rag_trace for item in at.storage._normalize_message_records([question, old])] == [None, TRACE]


# --- a turn ---


async def test_a_turn_is_accepted_and_finished(at: Stored):
    turn = await at.begin("What is it?")
    assert (turn.created, turn.title) == (True, "What is it?")
    question, answer = await at.storage.get_session_messages(at.user.id, "s")
    assert (question.content, question.status, answer.content, answer.status) == (
        "What is it?",
        "completed",
        "",
        "pending",
    )
    assert await at.finish(turn, "It is a pump.", TRACE)
    assert not await at.finish(turn, "Something else.")
    question, answer = await at.storage.get_session_messages(at.user.id, "s")
    assert (answer.content, answer.status, answer.rag_trace) == ("It is a pump.", "completed", TRACE)
    assert (answer.id, question.id) == (str(turn.ref.message_id), str(turn.ref.human_message_id))
    second = await at.turn("And then?")
    assert second.title is None
    assert [info.message_count for info in await at.storage.list_session_infos(at.user.id)] == [4]


async def test_only_the_owner_of_a_run_finishes_it(at: Stored):
    turn = await at.begin()
    end = TurnEnd("completed", "theirs")
    assert not await at.storage.finish_turn(turn.ref, end, None, 1, worker_id="another")
    async with transaction(at.engine) as connection:
        assert not await run_repository.take_over(connection, turn.ref.run_id, "another", 10)
    assert not await at.storage.finish_turn(turn.ref, end, None, 1, worker_id="another")
    await at.sql("update runs set lease_expires_at = now() - interval '1 s'")
    async with transaction(at.engine) as connection:
        assert await run_repository.take_over(connection, turn.ref.run_id, "another", 10)
        assert not await run_repository.take_over(connection, turn.ref.run_id, "a third", 10)
    assert not await at.finish(turn, "Mine.")
    assert await at.contents() == ["question", ""]
    assert await at.storage.finish_turn(turn.ref, end, None, 1, worker_id="another")
    assert await at.contents() == ["question", "theirs"]


async def test_a_refused_turn_writes_nothing(at: Stored):
    first = await at.storage.append_turn(at.claim(client_message_id="k"))
    before = await at.sql("select version, message_count, updated_at from chat_sessions")
    with pytest.raises(RunActive) as active:
        await at.begin("again")
    assert active.value.fields["run_id"] == str(first.ref.run_id)
    with pytest.raises(IdempotencyConflict):
        await at.storage.append_turn(at.claim("other", client_message_id="k", request_hash="other"))
    with pytest.raises(StaleHitl):
        await at.storage.append_turn(at.claim(session_id="new", hitl_id="x"))
    with pytest.raises(TooManyRuns):
        await at.storage.append_turn(replace(at.claim(session_id="new"), max_runs_per_user=1))
    with pytest.raises(Unauthorized):
        await at.storage.append_turn(replace(at.claim(), user_id=uuid4()))
    again = await at.storage.append_turn(at.claim(client_message_id="k"))
    assert (again.ref, again.created) == (first.ref, False)
    assert await at.sql("select version, message_count, updated_at from chat_sessions") == before
    assert await at.storage.find_turn(at.user.id, "s", "k", "h") == again
    assert await at.storage.find_turn(at.user.id, "s", "other", "h") is None


async def test_a_turn_costs_the_same_at_any_length(at: Stored):
    await at.many(10, "short")
    await at.many(2_000, "long")
    seen: list[tuple[int, int, int]] = []
    for session_id in ("short", "long"):
        with counted(at.engine) as claimed:
            turn = await at.begin(session_id=session_id)
        with counted(at.engine) as finished:
            assert await at.finish(turn)
        with counted(at.engine) as recalled:
            assert len(await at.storage.recent_turns(turn.ref, 8)) == 8
        seen.append((claimed.count, finished.count, recalled.count))
        assert not [item for item in claimed.texts + finished.texts if "chat_messages" in item and "max(" in item]
    assert seen[0] == seen[1]
    assert max(seen[0]) <= 12


async def test_a_written_turn_reaches_a_copy_of_any_length_whole(at: Stored):
    await at.many(700)
    page = await at.storage.message_page(at.user.id, "s")
    assert (len(page.messages), page.more) == (500, True)
    await at.turn("new question", "new answer")
    with counted(at.engine) as reading:
        page = await at.storage.message_page(at.user.id, "s")
    assert reading.count == 1
    assert [item.seq for item in page.messages] == list(range(203, 703))
    assert [item.info.content for item in page.messages[-2:]] == ["new question", "new answer"]
    whole = await at.contents()
    assert len(whole) == 702
    assert whole[0] == "message 1"


async def test_recent_turns_are_those_before_the_turn(at: Stored):
    await at.turn("q1", "a1")
    await at.turn("q2", "a2")
    turn = await at.begin("q3")
    recent = await at.storage.recent_turns(turn.ref, 3)
    assert [item.content for item in recent] == ["a1", "q2", "a2"]
    assert await at.storage.recent_turns(turn.ref, 0) == []


# --- the whole history (F18-F20) ---


def told(*texts: str) -> list[BaseMessage]:
    """Human and assistant in turn."""
    return [AIMessage(content=item) if at % 2 else HumanMessage(content=item) for at, item in enumerate(texts)]


async def records(at: Stored) -> list[MessageInfo]:
    """What PostgreSQL has, the cache left out, and a check that the cache says the same."""
    cached = await at.storage.get_session_messages(at.user.id, "s")
    await at.cache.delete(*at.keys())
    stored = await at.storage.get_session_messages(at.user.id, "s")
    assert cached == stored
    return stored


async def test_saving_the_same_changes_no_message(at: Stored):
    await at.storage.save(at.user.id, "s", told("a", "b"), extra_message_data=[None, {"rag_trace": TRACE}])
    before = await records(at)
    await at.storage.save(at.user.id, "s", told("a", "b"))
    assert await records(at) == before
    assert before[1].rag_trace == TRACE


async def test_a_longer_history_keeps_what_was_there(at: Stored):
    await at.storage.save(at.user.id, "s", told("a", "b"))
    before = await records(at)
    await at.storage.save(at.user.id, "s", told("a", "b", "c"))
    after = await records(at)
    assert after[:2] == before
    assert [item.content for item in after] == ["a", "b", "c"]


async def test_a_shorter_history_drops_the_end(at: Stored):
    await at.storage.save(at.user.id, "s", told("a", "b", "c", "d"))
    before = await records(at)
    await at.storage.save(at.user.id, "s", told("a", "b"))
    assert await records(at) == before[:2]
    await at.storage.save(at.user.id, "s", [])
    assert await records(at) == []
    assert [info.message_count for info in await at.storage.list_session_infos(at.user.id)] == [0]
    await at.turn("x", "y")
    assert [item.content for item in await records(at)] == ["x", "y"]


async def test_a_change_in_the_middle_leaves_the_rest(at: Stored):
    traces = [None, {"rag_trace": TRACE}, None, {"rag_trace": TRACE}]
    await at.storage.save(at.user.id, "s", told("a", "b", "c", "d"), extra_message_data=traces)
    before = await records(at)
    await at.storage.save(at.user.id, "s", told("a", "B", "c", "d"))
    after = await records(at)
    assert [after[0], *after[2:]] == [before[0], *before[2:]]
    assert (after[1].content, after[1].rag_trace) == ("B", None)
    assert after[1].id != before[1].id


async def test_another_kind_at_a_place_is_a_change(at: Stored):
    await at.storage.save(at.user.id, "s", told("a", "b"))
    before = await records(at)
    await at.storage.save(at.user.id, "s", [SystemMessage(content="a"), AIMessage(content="b")])
    after = await records(at)
    assert ([item.type for item in after], after[1]) == (["system", "ai"], before[1])


async def test_a_new_trace_replaces_the_old_one_in_place(at: Stored):
    await at.storage.save(at.user.id, "s", told("a", "b"), extra_message_data=[None, {"rag_trace": TRACE}])
    before = await records(at)
    changed = {"query": "another", "unknown": 1}
    await at.storage.save(at.user.id, "s", told("a", "b"), extra_message_data=[None, {"rag_trace": changed}])
    after = await records(at)
    assert after == [before[0], before[1].model_copy(update={"rag_trace": {"query": "another"}})]
    await at.storage.save(at.user.id, "s", told("a", "b"), extra_message_data=[{}, {"rag_trace": None}])
    assert await records(at) == after


async def test_metadata_is_merged(at: Stored):
    await at.storage.save(at.user.id, "s", told("a"), {"one": 1, "two": {"x": "a\x00b"}})
    await at.storage.save(at.user.id, "s", told("a"), {"two": 2, "three": 3})
    await at.storage.save(at.user.id, "s", told("a", "b"))
    messages, metadata = await at.storage.load_with_meta(at.user.id, "s")
    assert [item.content for item in messages] == ["a", "b"]
    assert metadata == {"one": 1, "two": 2, "three": 3}


async def test_what_is_saved_is_clean(at: Stored):
    dirty = "a\x00b \ud83d caf\u0065\u0301"
    await at.storage.save(at.user.id, "s", told(dirty), {"k\x00": dirty}, [{"rag_trace": {"query": dirty}}])
    (message,) = await records(at)
    clean = "ab \ufffd caf\u00e9"
    assert (message.content, message.rag_trace) == (clean, {"query": clean})
    assert (await at.storage.load_with_meta(at.user.id, "s"))[1] == {"k": clean}
    await at.storage.save(at.user.id, "s", told(dirty))
    assert await records(at) == [message]


async def test_saving_during_an_answer_is_refused(at: Stored):
    turn = await at.begin()
    with pytest.raises(RunActive):
        await at.storage.save(at.user.id, "s", await at.storage.load(at.user.id, "s"))
    assert await at.finish(turn, "kept")
    assert await at.contents() == ["question", "kept"]


async def test_saving_for_nobody_is_refused(at: Stored):
    with pytest.raises(Unauthorized):
        await at.storage.save(uuid4(), "s", told("a"))


async def test_loading_leaves_a_pending_answer_out(at: Stored):
    await at.turn("q1", "a1")
    await at.begin("q2")
    messages = await at.storage.load(at.user.id, "s")
    assert [(type(item), item.content) for item in messages] == [
        (HumanMessage, "q1"),
        (AIMessage, "a1"),
        (HumanMessage, "q2"),
    ]
    assert await at.storage.load_with_meta(at.user.id, "unused") == ([], {})


async def test_two_savers_leave_one_of_both(at: Stored):
    both = [told(*(f"{name}{n}" for n in range(20))) for name in "ab"]
    await asyncio.gather(*(at.storage.save(at.user.id, "s", messages) for messages in both for _ in range(3)))
    found = [item.content for item in await records(at)]
    assert found in [[item.content for item in messages] for messages in both]


# --- reading and listing (F21-F23) ---


async def test_lists_are_newest_first_whoever_is_cached(at: Stored):
    for name in "abc":
        await at.turn(session_id=name)
    await at.turn(session_id="a")
    for _ in range(2):
        assert await at.storage.list_sessions(at.user.id) == ["a", "c", "b"]
    infos = await at.storage.list_session_infos(at.user.id)
    assert [(info.session_id, info.title, info.message_count) for info in infos] == [
        ("a", "question", 4),
        ("c", "question", 2),
        ("b", "question", 2),
    ]
    assert await at.storage.list_sessions(uuid4()) == []


async def test_all_sessions_are_listed_over_all_pages(at: Stored):
    await at.sql(
        "insert into chat_sessions (user_id, session_id) select :user, 'n' || n from generate_series(1, 260) n",
        user=at.user.id,
    )
    names = await at.storage.list_sessions(at.user.id)
    assert sorted(names) == sorted(f"n{n}" for n in range(1, 261))


async def test_a_name_shows_at_once(at: Stored):
    await at.turn()
    await at.storage.list_session_infos(at.user.id)
    renamed = await at.storage.rename(at.user.id, "s", "Pumps")
    assert renamed is not None
    assert [info.title for info in await at.storage.list_session_infos(at.user.id)] == ["Pumps"]
    await at.turn("another question")
    assert [info.title for info in await at.storage.list_session_infos(at.user.id)] == ["Pumps"]
    assert await at.storage.rename(at.user.id, "unused", "x") is None
    assert await at.storage.rename(uuid4(), "s", "x") is None


async def test_what_is_another_users_is_not_there(at: Stored, engine: AsyncEngine):
    turn = await at.turn()
    bob = await new_user(engine, "bob")
    assert await at.storage.get_session_messages(bob.id, "s") == []
    assert await at.storage.list_sessions(bob.id) == []
    assert await at.storage.message(bob.id, turn.ref.message_id) is None
    assert await at.storage.run(bob.id, turn.ref.run_id) is None
    assert await at.storage.active_run(bob.id, "s") is None
    assert await at.storage.find_turn(bob.id, "s", "k", "h") is None
    assert not await at.storage.delete_session(bob.id, "s")
    assert len(await at.contents()) == 2


JUNK = [
    '"text"',
    "[1, 2]",
    "17",
    "{}",
    '{"query": 5, "retrieved_chunks": "none", "sub_traces": {"a": 1}, "recall_count": "many"}',
    '{"retrieved_chunks": [1, null, {"text": "no name"}, {"filename": "a", "score": "high"}], "x": {"y": []}}',
]


@pytest.mark.parametrize("junk", JUNK)
async def test_a_row_of_another_version_never_breaks_reading(at: Stored, junk: str):
    turn = await at.turn()
    for column in ("rag_trace", "citations", "usage", "flags", "attachments"):
        await at.sql(f"update chat_messages set {column} = cast(:junk as jsonb)", junk=junk)
    await at.sql("update chat_messages set finish_reason = 'tired'")
    await at.cache.delete(*at.keys())
    found = await records(at)
    assert [item.content for item in found] == ["question", "answer"]
    message = await at.storage.message(at.user.id, turn.ref.message_id)
    assert message == found[1]
    assert (message.citations, message.usage, message.flags, message.finish_reason) == ([], None, [], None)
    assert [item.content for item in await at.storage.load(at.user.id, "s")] == ["question", "answer"]
    assert (await at.begin()).created


async def test_of_a_broken_list_the_good_items_stay(at: Stored):
    await at.turn()
    good = '{"index": 1, "chunk_id": null, "document_id": null, "filename": "a", "page_number": 1, "heading": null,'
    good += ' "quote": "q", "score": 0.5}'
    await at.sql(
        'update chat_messages set citations = cast(:items as jsonb), flags = \'["truncated", "odd"]\''
        " where type = 'ai'",
        items=f'[{good}, {{"index": "one"}}, 3]',
    )
    await at.cache.delete(*at.keys())
    answer = (await records(at))[1]
    assert ([item.index for item in answer.citations], answer.flags) == ([1], ["truncated"])


# --- deleting (F24) ---


async def test_a_deleted_session_is_gone_with_all_that_hangs_on_it(at: Stored):
    await at.turn("q", "a")
    await at.turn("q", "a", session_id="other")
    assert len(await at.contents()) == 2
    assert await at.storage.list_sessions(at.user.id) == ["other", "s"]
    assert await at.storage.delete_session(at.user.id, "s") is True
    assert await at.storage.delete_session(at.user.id, "s") is False
    assert await at.contents() == []
    assert await at.storage.list_sessions(at.user.id) == ["other"]
    for table in ("chat_sessions", "runs"):
        assert (await at.sql(f"select count(*) from {table}"))[0][0] == 1
    assert (await at.sql("select count(*) from purge_outbox"))[0][0] == 0


async def test_a_run_that_goes_on_after_the_deletion_writes_nothing(at: Stored):
    turn = await at.begin()
    assert await at.storage.delete_session(at.user.id, "s")
    assert not await at.finish(turn, "late")
    assert await at.sql("select * from chat_messages") == []
    again = await at.turn("q", "a")
    assert again.ref.session_row_id != turn.ref.session_row_id
    assert await at.contents() == ["q", "a"]
    assert WORKER in (await at.sql("select worker_id from runs"))[0]
