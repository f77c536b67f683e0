"""Workers in process: the chat service over a real database, with a model over real HTTP."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson
from langchain_core.tools import BaseTool
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.agents.lead import Threads
from backend.agents.middlewares.budget import PromptLimits
from backend.auth.repository import AccountRepository
from backend.chat.config import ChatConfig
from backend.chat.runtime import AgentRuntime
from backend.chat.service import ChatService, StartedTurn
from backend.infra.cache import Cache, create_redis
from backend.infra.config import ModelConfig
from backend.infra.llm.openai import openai_model
from backend.infra.rate_limit import RateLimiter
from backend.rag.config import RagConfig
from backend.schemas.auth import Principal
from backend.schemas.chat import ChatRequest
from tests.rag.library import MemoryLibrary, leaf, pipeline
from tests.support.fake_llm import FakeLLM
from tests.support.seen import Seen

WARRANTY = leaf("w", text="The warranty lasts 24 months.", page_number=17, filename="pump.pdf")


def count_tokens(text: str) -> int:
    """A tokenizer of a kind that knows no Chinese."""
    return len(text) // 4 + 1


def no_redis() -> Cache:
    """A cache whose Redis cannot be reached."""
    return Cache(create_redis("redis://127.0.0.1:1"))


async def new_user(engine: AsyncEngine, name: str = "alice") -> Principal:
    """A registered account."""
    account = await AccountRepository(engine).create(name, "no password", lambda _: "admin")
    return Principal(id=account.id, username=name, role="admin")


@asynccontextmanager
async def worker(
    engine: AsyncEngine,
    llm: FakeLLM,
    *,
    library: MemoryLibrary | None = None,
    drain: bool = True,
    upkeep: AsyncEngine | None = None,
    limits: PromptLimits | None = None,
    notes: bool = False,
    titles: bool = False,
    rag: RagConfig | None = None,
    redis_url: str | None = None,
    tools: Sequence[BaseTool] = (),
    threads: Threads | None = None,
    **config: Any,
) -> AsyncIterator[ChatService]:
    """A started worker, without Redis unless it is named. ``drain=False``: left as a killed one would leave it."""
    answer_tokens = 2_000 if limits is None else limits.answer
    given = ModelConfig(llm_base_url=llm.base_url, llm_model="fake", answer_max_tokens=answer_tokens)
    model = openai_model(given, model="fake")
    cache = no_redis() if redis_url is None else Cache(create_redis(redis_url))
    service = ChatService(
        engine,
        cache,
        RateLimiter(cache),
        AgentRuntime(
            model,
            pipeline(library or MemoryLibrary([WARRANTY]), rag),
            list(tools),
            max_model_calls=4,
            limits=limits,
            threads=threads,
        ),
        ChatConfig(**config),
        chat_rate_per_minute=0,
        count_tokens=count_tokens,
        note_model=model if notes else None,
        title_model=model if titles else None,
        upkeep=upkeep,
    )
    await service.start()
    try:
        yield service
    finally:
        if drain:
            await service.drain()
        await service.close()
        await model.aclose()
        await cache.redis.aclose()


def ask(message: str = "How long is the warranty?", session_id: str = "s", **fields: Any) -> ChatRequest:
    """A question."""
    return ChatRequest(message=message, session_id=session_id, **fields)


@dataclass
class Events(Seen):
    """What a subscriber got."""

    seqs: list[int] = field(default_factory=list)


async def read(service: ChatService, user: Principal, run_id: UUID, after: int = 0) -> Events:
    """Follow a run to the end of its stream."""
    seen = Events()
    async with asyncio.timeout(60):
        async for batch in service.follow(user, run_id, after):
            seen.seqs += [event.seq for event in batch]
            seen.events += [orjson.loads(event.data) for event in batch]
    return seen


async def until_text(service: ChatService, user: Principal, run_id: UUID, wanted: str) -> int:
    """Wait until a live run has sent ``wanted``; gives the ``seq`` reached."""
    content, stream = "", service.follow(user, run_id, 0)
    try:
        async with asyncio.timeout(60):
            async for batch in stream:
                content += "".join(
                    event["content"] for item in batch if (event := orjson.loads(item.data))["type"] == "content"
                )
                if wanted in content:
                    return batch[-1].seq
    finally:
        await stream.aclose()
    raise AssertionError(f"the run ended with {content!r}")


async def whole_turn(service: ChatService, user: Principal, request: ChatRequest | None = None) -> StartedTurn:
    """Ask and wait for the end."""
    turn = await service.start_turn(user, request or ask(), "en")
    await service.answer(user, turn)
    return turn
