"""Password hashes: Argon2id in threads, as many at once as the machine can carry."""

import asyncio
import secrets
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from pwdlib import PasswordHash
from pwdlib.hashers.argon2 import Argon2Hasher

from backend.errors import RateLimited

P = ParamSpec("P")
T = TypeVar("T")


class PasswordHasher:
    """Hashes and verifies off the event loop, ``concurrency`` at a time and ``waiting`` in line at most.

    The parameters are the OWASP minimum for Argon2id (19 MiB, two passes, one lane): about 20 ms and little memory, so
    a flood of logins cannot exhaust the host. Raises :class:`RateLimited` when the line is full.
    """

    def __init__(self, *, concurrency: int = 2, waiting: int = 100) -> None:
        self._hash = PasswordHash((Argon2Hasher(time_cost=2, memory_cost=19_456, parallelism=1),))
        self._slots = asyncio.Semaphore(concurrency)
        self._free = concurrency + waiting
        self._dummy = self._hash.hash(secrets.token_urlsafe(32))

    async def hash(self, password: str) -> str:
        """The encoded hash of ``password`` with a fresh salt."""
        return await self._run(self._hash.hash, password)

    async def verify(self, password: str, encoded: str | None) -> bool:
        """Whether ``encoded`` is a hash of ``password``.

        Without ``encoded`` (no such account) a dummy is verified: the same work, the answer always no.
        """
        matches = await self._run(self._hash.verify, password, encoded or self._dummy)
        return matches and encoded is not None

    async def _run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._free <= 0:
            raise RateLimited(retry_after=1)
        self._free -= 1
        try:
            async with self._slots:
                return await asyncio.to_thread(function, *args, **kwargs)
        finally:
            self._free += 1
