"""A model with a small window: no prompt is too long, and where one is all the same, the turn and the next one work."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.agents.middlewares.budget import PromptLimits
from backend.chat.service import ChatService
from backend.errors import MessageTooLarge
from backend.rag.config import RagConfig
from backend.schemas.chat import ChatResponse
from tests.chat.stored import Stored
from tests.chat.workers import ask, count_tokens, new_user, no_redis, read, whole_turn, worker
from tests.rag.library import MemoryLibrary, StoredPiece, leaf
from tests.support.fake_llm import FakeLLM, status, text, tool_call
from tests.support.fake_llm_checks import context_length_exceeded
from tests.support.fake_llm_replies import Request

WINDOW, ANSWER = 4_096, 500
LIMITS = PromptLimits(WINDOW, ANSWER, count_tokens)
SEARCH = tool_call("search_knowledge_base", {"query": "warranty"})
SENTENCE = {
    "en": "The warranty of the pump lasts twenty four months. ",
    "zh": "水泵的保修期为二十四个月，从购买之日起计算。",
}


def large(count: int, language: str = "en", chars: int = 2_000) -> MemoryLibrary:
    """A library of large passages, each with its number in it."""
    body = (SENTENCE[language] * chars)[:chars]
    pieces: list[StoredPiece] = [leaf(f"p{n}", text=f"passage {n}: {body}") for n in range(1, count + 1)]
    return MemoryLibrary(pieces)


@asynccontextmanager
async def small_window(
    engine: AsyncEngine, llm: FakeLLM, library: MemoryLibrary | None = None, limits: PromptLimits = LIMITS
) -> AsyncIterator[ChatService]:
    llm.window = WINDOW
    async with worker(
        engine, llm, library=library, limits=limits, context_messages=120, rag=RagConfig(retrieval_top_k=50)
    ) as service:
        yield service


def passages(request: Request) -> list[str]:
    results = [message["content"] for message in request.messages if message["role"] == "tool"]
    return results[-1].split("\n\n") if results else []


def answered(answer: ChatResponse) -> None:
    assert (answer.status, answer.error) == ("completed", None)


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_f05_sixty_long_turns(engine: AsyncEngine, language: str):
    user = await new_user(engine)
    async with FakeLLM() as llm, small_window(engine, llm) as service:
        stored = Stored(service.storage, engine, no_redis(), user)
        for number in range(60):
            await stored.turn(
                f"question {number} {SENTENCE[language] * 8}", f"answer {number} {SENTENCE[language] * 8}"
            )
        await stored.cache.redis.aclose()
        answer = await service.answer(user, await whole_turn(service, user))
        answered(answer)
        assert [item.index for item in answer.citations] == [1]
        answered(await service.answer(user, await whole_turn(service, user)))
        shown = [message["content"] for message in llm.chats[0].messages[1:]]
        roles = [message["role"] for message in llm.chats[0].messages[1:]]
    assert llm.too_long == 0
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    assert len(roles) > 1
    oldest = 60 - len(roles) // 2
    assert shown[0].startswith(f"question {oldest} "), "the newest turns are those that are left"


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_f05_fifty_large_passages(engine: AsyncEngine, language: str):
    user = await new_user(engine)
    async with FakeLLM() as llm, small_window(engine, llm, large(50, language)) as service:
        llm.script(SEARCH, text("It lasts 24 months [1]. So does [2], but not [50]."))
        turn = await whole_turn(service, user)
        answer = await service.answer(user, turn)
        answered(answer)
        shown = passages(llm.chats[-1])
        assert 1 <= len(shown) < 8
        assert [item.partition(" ")[0] for item in shown] == [f"[{n}]" for n in range(1, len(shown) + 1)]
        assert [f"passage {n}:" in item for n, item in enumerate(shown, start=1)] == [True] * len(shown)
        valid = [n for n in (1, 2, 50) if n <= len(shown)]
        assert [item.index for item in answer.citations] == valid
        assert "[50]" not in answer.response
        assert answer.rag_trace is not None
        assert len(answer.rag_trace["retrieved_chunks"]) == len(shown)
        for item in answer.citations:
            assert f"passage {item.index}:" in answer.rag_trace["retrieved_chunks"][item.index - 1]["text"]
        assert (await read(service, user, turn.run_id)).text == answer.response
        answered(await service.answer(user, await whole_turn(service, user)))
    assert llm.too_long == 0


@pytest.mark.parametrize("message", ["x" * 100_000, "水" * 30_000], ids=["en", "zh"])
async def test_f05_a_message_that_is_too_long_costs_nothing(engine: AsyncEngine, message: str):
    user = await new_user(engine)
    async with FakeLLM() as llm, small_window(engine, llm) as service:
        with pytest.raises(MessageTooLarge):
            await service.start_turn(user, ask(message), "en")
        assert (await service.sessions(user)).sessions == []
        assert llm.requests == []
        answered(await service.answer(user, await whole_turn(service, user)))


async def test_f05_a_long_message_of_an_earlier_turn(engine: AsyncEngine):
    """As it is stored when the window was larger, or nobody had one."""
    user = await new_user(engine)
    async with FakeLLM() as llm, small_window(engine, llm) as service:
        stored = Stored(service.storage, engine, no_redis(), user)
        await stored.turn("early question", "early answer")
        await stored.turn("x" * 100_000, "a long one")
        await stored.cache.redis.aclose()
        answered(await service.answer(user, await whole_turn(service, user)))
        answered(await service.answer(user, await whole_turn(service, user)))
        prompts = [[message["content"] for message in request.messages[1:]] for request in llm.chats]
    assert llm.too_long == 0
    assert prompts[0] == ["How long is the warranty?"], "a conversation has no hole"


async def test_f05_a_provider_that_counts_more_is_asked_once_more_with_less(engine: AsyncEngine):
    user = await new_user(engine)
    roomy = PromptLimits(3 * WINDOW, ANSWER, count_tokens)
    async with FakeLLM() as llm, small_window(engine, llm, large(8, chars=1_500), roomy) as service:
        stored = Stored(service.storage, engine, no_redis(), user)
        await stored.turn("early question", f"early answer {SENTENCE['en'] * 60}")
        await stored.cache.redis.aclose()
        llm.script(SEARCH, text("It lasts 24 months [1]. And [8]?"))
        answer = await service.answer(user, await whole_turn(service, user))
        assert llm.too_long == 1
        refused, taken = llm.chats[-2:]
        assert len(passages(taken)) < len(passages(refused)) == 8
        answered(answer)
        assert [item.index for item in answer.citations] == [1]
        answered(await service.answer(user, await whole_turn(service, user)))


async def test_f05_a_provider_that_refuses_every_length_is_asked_twice(engine: AsyncEngine):
    user = await new_user(engine)
    refusal = status(400, context_length_exceeded(10, 20))
    async with FakeLLM() as llm, small_window(engine, llm) as service:
        llm.script(SEARCH, refusal, refusal, refusal)
        answer = await service.answer(user, await whole_turn(service, user))
        assert answer.error is not None
        assert (answer.status, answer.error.code, answer.error.retryable) == ("failed", "context_too_long", False)
        assert len(llm.chats) <= 3
        llm._scripts.clear()
        answered(await service.answer(user, await whole_turn(service, user)))


async def test_f05_without_a_window_nothing_is_cut(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, library=large(8)) as service:
        llm.script(SEARCH, text("Yes [8]."))
        answer = await service.answer(user, await whole_turn(service, user, ask("x" * 20_000)))
        assert len(passages(llm.chats[-1])) == 8
    assert [item.index for item in answer.citations] == [8]
