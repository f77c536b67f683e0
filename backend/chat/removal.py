"""The end of an account, with everything that hangs on it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

from backend.auth.service import AuthService
from backend.chat.storage import ConversationStorage
from backend.errors import StorageUnavailable
from backend.knowledge.service import KnowledgeBase

ROUNDS = 20
"""A request that was let in before the account was disabled may still add something; then it is looked at again."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What went with the account."""

    username: str
    sessions: int
    documents: int


class AccountRemoval:
    """Each step can be repeated, so a removal that was cut short is finished by the next one."""

    def __init__(self, auth: AuthService, storage: ConversationStorage, knowledge: KnowledgeBase) -> None:
        self.auth = auth
        self._storage = storage
        self._knowledge = knowledge

    async def remove(self, username: str) -> Removed:
        """Delete an account with its sessions, and its private documents with files and index rows.

        Its shared documents stay and belong to the install. What cannot be removed outside PostgreSQL now (Redis or
        the index are away) is in the outbox for the sweeper. Raises :class:`NotFound`, :class:`StorageUnavailable`.
        """
        account = await self.auth.set_disabled(username, True)
        sessions = documents = 0
        for _ in range(ROUNDS):
            sessions += await _all(self._storage.delete_sessions, account.id)
            documents += await _all(self._knowledge.release_owner, account.id)
            if await self.auth.delete_empty(account.id):
                await self._knowledge.sweep()
                return Removed(account.username, sessions, documents)
        raise StorageUnavailable(retry_after=1)


async def _all(remove_some: Callable[[UUID], Awaitable[int]], user_id: UUID) -> int:
    """Call until nothing is left; how much there was."""
    total = 0
    while removed := await remove_some(user_id):
        total += removed
    return total
