"""Whatever was stored and whatever is saved: afterwards the stored history is the one given."""

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from sqlalchemy import URL

from backend.infra.database.engine import create_engine
from backend.text import clean_text
from tests.chat.stored import Stored, stored_conversations

KINDS: list[type[BaseMessage]] = [HumanMessage, AIMessage, SystemMessage]
TEXTS = st.sampled_from(["", "a", "b", "a\x00", "\ud800", "中文", "e\u0301"]) | st.text(max_size=5)
HISTORIES = st.lists(st.builds(lambda kind, content: kind(content=content), st.sampled_from(KINDS), TEXTS), max_size=8)


class _Loop:
    """One loop, engine and storage for all examples."""

    def __init__(self, database_url: URL, redis_url: str) -> None:
        self.runner = asyncio.Runner()
        self.engine = create_engine(database_url, pool_size=2)
        self.context = stored_conversations(self.engine, redis_url)
        self.at: Stored = self.runner.run(self.context.__aenter__())

    def close(self) -> None:
        self.runner.run(self.context.__aexit__(None, None, None))
        self.runner.run(self.engine.dispose())
        self.runner.close()


@pytest.fixture
def loop(migrated_url: URL, valkey_url: str) -> Iterator[_Loop]:
    made = _Loop(migrated_url, valkey_url)
    yield made
    made.runner.run(made.at.sql("truncate users cascade"))
    made.close()


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=HISTORIES, after=HISTORIES, cached=st.booleans())
def test_after_save_the_history_is_the_one_given(
    loop: _Loop, before: list[BaseMessage], after: list[BaseMessage], cached: bool
):
    loop.runner.run(_saved(loop.at, before, after, cached))


async def _saved(at: Stored, before: list[BaseMessage], after: list[BaseMessage], cached: bool) -> None:
    session_id = uuid4().hex
    await at.storage.save(at.user.id, session_id, before)
    old = await at.storage.get_session_messages(at.user.id, session_id)
    if not cached:
        await at.cache.delete(*at.keys(session_id))
    await at.storage.save(at.user.id, session_id, after)
    new = await at.storage.load(at.user.id, session_id)
    assert [(type(item), item.content) for item in new] == [(type(i), clean_text(str(i.content))) for i in after]
    kept = [item.id for item in new]
    for position, (first, second) in enumerate(zip(before, after, strict=False)):
        same = (type(first), clean_text(str(first.content))) == (type(second), clean_text(str(second.content)))
        assert (old[position].id == kept[position]) == same
    await at.turn("next", "answer", session_id)
    assert (await at.contents(session_id))[-2:] == ["next", "answer"]
    assert len(await at.contents(session_id)) == len(after) + 2
