"""Hashing: right answers, equal work, bounded."""

import asyncio

import pytest

from backend.auth.passwords import PasswordHasher
from backend.errors import RateLimited


async def test_a_password_matches_its_own_hash_only() -> None:
    hasher = PasswordHasher()
    encoded = await hasher.hash("correct horse")
    assert encoded.startswith("$argon2id$")
    assert "correct horse" not in encoded
    assert encoded != await hasher.hash("correct horse")
    assert await hasher.verify("correct horse", encoded)
    assert not await hasher.verify("correct horsE", encoded)


async def test_without_an_account_the_answer_is_no() -> None:
    assert not await PasswordHasher().verify("anything", None)


async def test_the_line_is_bounded_and_free_again_afterwards() -> None:
    hasher = PasswordHasher(concurrency=1, waiting=2)
    results = await asyncio.gather(*(hasher.hash("x" * 8) for _ in range(6)), return_exceptions=True)
    assert sum(isinstance(result, RateLimited) for result in results) == 3
    assert sum(isinstance(result, str) for result in results) == 3
    assert await hasher.hash("again it works")


async def test_a_cancelled_wait_gives_its_place_back() -> None:
    hasher = PasswordHasher(concurrency=1, waiting=1)
    tasks = [asyncio.create_task(hasher.hash("x" * 8)) for _ in range(2)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(await asyncio.gather(*(hasher.hash("y" * 8) for _ in range(2))))


@pytest.mark.parametrize("password", ["пароль-пароль", "\u202e" * 8, "a" * 1024, "😀" * 1024])
async def test_any_text_can_be_a_password(password: str) -> None:
    hasher = PasswordHasher()
    assert await hasher.verify(password, await hasher.hash(password))
