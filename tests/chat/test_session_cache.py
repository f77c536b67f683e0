"""The copies in a real Valkey: told apart by version, never brought back by a slow reader (C01)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat.records import StoredMessage
from backend.chat.session_cache import SessionCache
from backend.chat.storage import ConversationStorage
from backend.infra.cache import Cache, create_redis
from backend.schemas.chat import MessageInfo, SessionInfo, SessionListResponse
from tests.chat.stored import Stored, counted, stored_conversations

USER = uuid4()


@pytest.fixture
async def at(engine: AsyncEngine, redis_url: str) -> AsyncIterator[Stored]:
    async with stored_conversations(engine, redis_url) as made:
        yield made


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    redis = Redis.from_url(redis_url)
    yield redis
    await redis.aclose()


@pytest.fixture
async def copies(redis_url: str) -> AsyncIterator[SessionCache]:
    redis = create_redis(redis_url)
    yield SessionCache(Cache(redis, timeout=10.0))
    await redis.aclose()


def message(seq: int, content: str = "text") -> StoredMessage:
    info = MessageInfo(
        type="human", content=content, timestamp="2026-01-01T00:00:00Z", id=str(uuid4()), status="completed"
    )
    return StoredMessage(seq, info)


def listed(*names: str) -> SessionListResponse:
    return SessionListResponse(
        sessions=[
            SessionInfo(session_id=name, title="t", updated_at="2026-01-01T00:00:00Z", message_count=2)
            for name in names
        ]
    )


# --- copies ---


async def test_a_copy_is_read_at_its_own_version_only(copies: SessionCache):
    page = [message(2, "b"), message(10, "c"), message(1, "a")]
    await copies.put_messages(USER, "s", 7, page)
    assert await copies.messages(USER, "s", 7) == sorted(page, key=lambda item: item.seq)
    assert await copies.messages(USER, "s", 6) is None
    assert await copies.messages(USER, "s", 8) is None
    assert await copies.messages(uuid4(), "s", 7) is None


async def test_an_empty_session_is_a_copy_too(copies: SessionCache):
    assert await copies.messages(USER, "s", 7) is None
    await copies.put_messages(USER, "s", 7, [])
    assert await copies.messages(USER, "s", 7) == []


async def test_an_older_copy_never_replaces_a_newer_one(copies: SessionCache):
    new = [message(1, "new")]
    await copies.put_messages(USER, "s", 10, new)
    await copies.put_messages(USER, "s", 9, [message(1, "old")])
    await copies.put_messages(USER, "s", 10, [message(1, "another")])
    assert await copies.messages(USER, "s", 10) == new
    assert await copies.messages(USER, "s", 9) is None


async def test_versions_are_compared_as_numbers(copies: SessionCache):
    new = [message(1, "new")]
    await copies.put_messages(USER, "s", 100, new)
    await copies.put_messages(USER, "s", 99, [message(1, "old")])
    assert await copies.messages(USER, "s", 100) == new


async def test_writing_through_adds_replaces_and_keeps_the_page_bounded(copies: SessionCache, redis: Redis):
    await copies.put_messages(USER, "s", 1, [message(n) for n in range(1, 501)])
    changed = [message(501, "question"), message(502, "")]
    await copies.write_through(USER, "s", 1, 2, changed)
    answer = message(502, "answer")
    await copies.write_through(USER, "s", 2, 3, [answer])
    found = await copies.messages(USER, "s", 3)
    assert found is not None
    assert [item.seq for item in found] == list(range(3, 503))
    assert found[-2:] == [changed[0], answer]
    assert await redis.ttl(f"chat_messages:{USER}:s") > 0


async def test_writing_through_an_older_copy_buries_it(copies: SessionCache):
    await copies.put_messages(USER, "s", 1, [message(1, "old")])
    await copies.write_through(USER, "s", 3, 4, [message(2)])
    for version in (1, 3, 4):
        assert await copies.messages(USER, "s", version) is None
    await copies.put_messages(USER, "s", 3, [message(1, "slow")])
    assert await copies.messages(USER, "s", 3) is None
    page = [message(1), message(2)]
    await copies.put_messages(USER, "s", 4, page)
    assert await copies.messages(USER, "s", 4) == page


async def test_writing_through_leaves_a_newer_copy_alone(copies: SessionCache):
    page = [message(1, "new")]
    await copies.put_messages(USER, "s", 9, page)
    await copies.write_through(USER, "s", 3, 4, [message(2)])
    assert await copies.messages(USER, "s", 9) == page


async def test_writing_through_makes_no_copy_of_a_part(copies: SessionCache):
    await copies.write_through(USER, "s", 0, 1, [message(1)])
    assert await copies.messages(USER, "s", 1) is None


async def test_what_is_buried_stays_so_for_slow_readers(copies: SessionCache, redis: Redis):
    await copies.put_messages(USER, "s", 5, [message(1, "secret")])
    await copies.put_list_page(USER, 5, listed("secret"))
    assert await copies.bury(USER, "s", 7, 6)
    await copies.put_messages(USER, "s", 5, [message(1, "secret")])
    await copies.put_list_page(USER, 5, listed("secret"))
    assert await copies.messages(USER, "s", 5) is None
    assert await copies.list_page(USER, 5) is None
    assert b"secret" not in await contents(redis)
    for key in await redis.keys():
        assert 0 < await redis.ttl(key) <= 300
    await copies.put_list_page(USER, 6, listed("other"))
    assert await copies.list_page(USER, 6) == listed("other")
    await copies.put_messages(USER, "s", 8, [message(1, "new")])
    assert await copies.messages(USER, "s", 8) is not None


async def test_burying_late_leaves_a_newer_session_alone(copies: SessionCache):
    page = [message(1, "made again")]
    await copies.put_messages(USER, "s", 9, page)
    await copies.put_list_page(USER, 9, listed("s"))
    assert await copies.bury(USER, "s", 7, 6)
    assert await copies.messages(USER, "s", 9) == page
    assert await copies.list_page(USER, 9) == listed("s")


@pytest.mark.parametrize("value", ["{", "[]", '{"type": "human"}', "\xff"])
async def test_an_unreadable_copy_is_a_miss(copies: SessionCache, redis: Redis, value: str):
    await copies.put_messages(USER, "s", 1, [message(1)])
    await copies.put_list_page(USER, 1, listed("s"))
    await redis.hset(f"chat_messages:{USER}:s", "1", value.encode("latin-1"))
    await redis.hset(f"chat_sessions:{USER}", "page", value.encode("latin-1"))
    assert await copies.messages(USER, "s", 1) is None
    assert await copies.list_page(USER, 1) is None


async def test_a_key_of_another_kind_is_a_miss(copies: SessionCache, redis: Redis):
    await redis.set(f"chat_messages:{USER}:s", "text")
    await copies.put_messages(USER, "s", 1, [message(1)])
    assert await copies.messages(USER, "s", 1) is None


async def contents(redis: Redis) -> bytes:
    """All that is in the cache, as bytes."""
    found = b""
    for key in await redis.keys():
        found += key + b" " + (await redis.dump(key) or b"") + b"\n"
        if await redis.type(key) == b"hash":
            found += b"".join(name + value for name, value in (await redis.hgetall(key)).items())
    return found


# --- a reader that stops between the database and the cache ---


class Pause:
    """Holds calls of one method until :meth:`release`, but for the first ``skip`` of them."""

    def __init__(self, target: object, name: str, *, skip: int = 0) -> None:
        self._target, self._name, self._skip = target, name, skip
        self._original: Callable[..., Awaitable[Any]] = getattr(target, name)
        self._go = asyncio.Event()
        self.reached = asyncio.Event()
        setattr(target, name, self._held)

    async def _held(self, *args: Any, **kwargs: Any) -> Any:
        self._skip -= 1
        if self._skip < 0:
            self.reached.set()
            await self._go.wait()
        return await self._original(*args, **kwargs)

    def let_others_pass(self) -> None:
        """Hold only those that are held now."""
        setattr(self._target, self._name, self._original)

    def release(self) -> None:
        self.let_others_pass()
        self._go.set()


async def _slow_reader(at: Stored, name: str, read: Callable[[ConversationStorage], Awaitable[Any]]) -> Any:
    """Another worker that has read the database and now is about to write its copy."""
    storage = ConversationStorage(at.engine, at.cache)
    pause = Pause(storage._cache, name)
    task = asyncio.ensure_future(read(storage))
    await pause.reached.wait()

    async def go_on() -> Any:
        pause.release()
        return await task

    return go_on


@pytest.mark.parametrize("cached", [False, True], ids=["no copy", "a copy"])
async def test_c01_a_slow_reader_never_hides_a_turn(at: Stored, cached: bool):
    await at.turn("first", "one")
    go_on = await _slow_reader(at, "put_messages", lambda storage: storage.get_session_messages(at.user.id, "s"))
    if cached:
        await at.contents()
    await at.turn("second", "two")
    assert [item.content for item in await go_on()] == ["first", "one"]
    for _ in range(2):
        assert await at.contents() == ["first", "one", "second", "two"]
    turn = await at.begin("third")
    assert [item.content for item in await at.storage.recent_turns(turn.ref, 12)] == ["first", "one", "second", "two"]


async def test_c01_a_slow_reader_never_brings_an_unfinished_answer_back(at: Stored):
    turn = await at.begin("first")
    go_on = await _slow_reader(at, "put_messages", lambda storage: storage.get_session_messages(at.user.id, "s"))
    await at.finish(turn, "one")
    assert [item.status for item in await go_on()] == ["completed", "pending"]
    for _ in range(2):
        assert await at.contents() == ["first", "one"]


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
async def test_c01_a_slow_reader_never_brings_a_deleted_session_back(at: Stored, redis: Redis, again: bool):
    await at.turn("marker-question", "marker-answer")
    go_on = await _slow_reader(at, "put_messages", lambda storage: storage.get_session_messages(at.user.id, "s"))
    assert await at.storage.delete_session(at.user.id, "s")
    if again:
        await at.turn("new", "newer")
    assert len(await go_on()) == 2
    assert b"marker" not in await contents(redis)
    for _ in range(2):
        assert await at.contents() == (["new", "newer"] if again else [])


async def test_c01_a_slow_reader_never_brings_an_old_list_back(at: Stored, redis: Redis):
    await at.turn("marker-title", session_id="gone")
    await at.turn("stays", session_id="here")
    go_on = await _slow_reader(at, "put_list_page", lambda storage: storage.list_sessions(at.user.id))
    assert await at.storage.delete_session(at.user.id, "gone")
    assert await go_on() == ["here", "gone"]
    assert b"marker" not in await contents(redis)
    for _ in range(2):
        assert await at.storage.list_sessions(at.user.id) == ["here"]
    with counted(at.engine) as reading:
        await at.storage.list_sessions(at.user.id)
    assert reading.count == 1, "the list is cached again"


async def test_c03_two_writers_in_opposite_order_leave_every_turn(at: Stored):
    """The first to commit is the last to reach the cache, and the other way round."""
    await at.turn("q0", "a0")
    await at.contents()
    one, two = (ConversationStorage(at.engine, at.cache) for _ in range(2))
    slow = Pause(one._cache, "write_through")
    first = asyncio.ensure_future(one.append_turn(at.claim("q1")))
    await slow.reached.wait()
    await at.sql("update runs set status = 'completed'")
    second = asyncio.ensure_future(two.append_turn(at.claim("q2")))
    await second
    expected = ["q0", "a0", "q1", "", "q2", ""]
    assert await at.contents() == expected
    slow.release()
    await first
    for _ in range(2):
        assert await at.contents() == expected
    recent = await at.storage.recent_turns(second.result().ref, 12)
    assert [item.content for item in recent] == expected[:4]


async def test_c04_without_redis_everything_is_there(engine: AsyncEngine):
    redis = create_redis("redis://127.0.0.1:1")
    async with stored_conversations(engine, "redis://127.0.0.1:1") as at:
        at.storage._cache = SessionCache(Cache(redis))
        await at.turn("q", "a")
        await at.turn("q", "a", session_id="other")
        assert await at.contents() == ["q", "a"]
        assert await at.storage.list_sessions(at.user.id) == ["other", "s"]
        assert await at.storage.delete_session(at.user.id, "other")
        assert await at.storage.list_sessions(at.user.id) == ["s"]
        assert len(await at.sql("select * from purge_outbox")) == 1
        await at.storage.sweep_deleted()
        assert len(await at.sql("select * from purge_outbox")) == 1
    await redis.aclose()


async def test_g05_what_redis_missed_goes_when_it_is_back(at: Stored, redis: Redis):
    await at.turn("marker", "marker")
    await at.contents()
    await at.storage.list_sessions(at.user.id)
    away = create_redis("redis://127.0.0.1:1")
    assert await ConversationStorage(at.engine, Cache(away)).delete_session(at.user.id, "s")
    await away.aclose()
    assert b"marker" in await contents(redis)
    assert await at.contents() == []
    ((target,),) = await at.sql("select target from purge_outbox")
    assert "marker" not in target
    await at.storage.sweep_deleted()
    assert b"marker" not in await contents(redis)
    assert await at.sql("select * from purge_outbox") == []
