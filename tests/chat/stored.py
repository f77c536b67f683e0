"""A storage over the real database and the real cache, and turns written straight into it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine
from structlog.contextvars import get_contextvars

from backend.chat.records import ClaimedTurn, TurnClaim, TurnEnd
from backend.chat.storage import ConversationStorage
from backend.infra.cache import Cache, create_redis
from backend.schemas.auth import Principal
from tests.chat.workers import new_user

WORKER = "w"


@dataclass
class Stored:
    """``storage`` and whose sessions are in it."""

    storage: ConversationStorage
    engine: AsyncEngine
    cache: Cache
    user: Principal

    def claim(self, message: str = "question", session_id: str = "s", **fields: Any) -> TurnClaim:
        given = {"request_hash": "h", "client_message_id": None, "language": "en", "title": message, **fields}
        return TurnClaim(
            user_id=self.user.id,
            session_id=session_id,
            message=message,
            worker_id=WORKER,
            lease_seconds=60,
            max_runs_per_user=4,
            **given,
        )

    async def begin(self, message: str = "question", session_id: str = "s") -> ClaimedTurn:
        return await self.storage.append_turn(self.claim(message, session_id))

    async def finish(self, turn: ClaimedTurn, answer: str = "answer", trace: dict[str, Any] | None = None) -> bool:
        end = TurnEnd("completed", answer, rag_trace=trace, finish_reason="stop")
        return await self.storage.finish_turn(turn.ref, end, None, 1, worker_id=WORKER)

    async def turn(self, message: str = "question", answer: str = "answer", session_id: str = "s") -> ClaimedTurn:
        turn = await self.begin(message, session_id)
        assert await self.finish(turn, answer)
        return turn

    async def contents(self, session_id: str = "s") -> list[str]:
        return [item.content for item in await self.storage.get_session_messages(self.user.id, session_id)]

    async def sql(self, statement: str, **values: Any) -> list[Any]:
        async with self.engine.begin() as connection:
            result = await connection.execute(text(statement), values)
            return list(result.all()) if result.returns_rows else []

    async def many(self, count: int, session_id: str = "s") -> UUID:
        """A session of ``count`` messages made at once; gives its row id."""
        ((row_id,),) = await self.sql(
            "insert into chat_sessions (user_id, session_id, title, message_count, last_seq)"
            " values (:user, :session, 'long', cast(:count as int), cast(:count as int)) returning id",
            user=self.user.id,
            session=session_id,
            count=count,
        )
        await self.sql(
            "insert into chat_messages (session_row_id, seq, type, content)"
            " select :row, n, case n % 2 when 1 then 'human' else 'ai' end, 'message ' || n"
            " from generate_series(1, cast(:count as int)) n",
            row=row_id,
            count=count,
        )
        return row_id

    def keys(self, session_id: str = "s") -> tuple[str, str]:
        return (
            self.storage._messages_cache_key(self.user.id, session_id),
            self.storage._sessions_cache_key(self.user.id),
        )


@asynccontextmanager
async def stored_conversations(engine: AsyncEngine, redis_url: str, name: str = "alice") -> AsyncIterator[Stored]:
    """A storage with one user."""
    redis = create_redis(redis_url)
    # A busy machine is no fault of Redis: the deadline is generous here.
    cache = Cache(redis, timeout=10.0)
    yield Stored(ConversationStorage(engine, cache), engine, cache, await new_user(engine, name))
    await redis.aclose()


@dataclass
class Statements:
    """What was executed."""

    texts: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.texts)


@contextmanager
def counted(engine: AsyncEngine, *, of_requests: bool = False) -> Iterator[Statements]:
    """The statements that the engine executes within the block; ``of_requests``: without those of background work."""
    seen = Statements()

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not of_requests or "request_id" in get_contextvars():
            seen.texts.append(statement)

    event.listen(engine.sync_engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", note)
