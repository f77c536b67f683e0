"""The one place that builds anything: the services of a process, and the ASGI application over them."""

import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import Pool, QueuePool

from backend import __version__
from backend.agents.lead import Threads
from backend.agents.middlewares.budget import PromptLimits
from backend.agents.tools.files import MAKE_FILES, NEED_FILES, SANDBOXED, build_file_tools
from backend.agents.tools.thread import ThreadTools
from backend.agents.tools.weather import build_weather, build_weather_tool
from backend.api.deps import Services
from backend.api.router import api_router, install
from backend.auth.secret import load_or_create_secret
from backend.auth.service import AuthService, create_auth_service
from backend.chat.removal import AccountRemoval
from backend.chat.runtime import AgentRuntime
from backend.chat.service import ChatService
from backend.chat.storage import ConversationStorage
from backend.chat.thread_files import ThreadFiles
from backend.chat.titles import rule_title
from backend.errors import StorageUnavailable
from backend.infra.cache import Cache, create_redis
from backend.infra.database.connections import connections_allowed
from backend.infra.database.engine import async_url, create_engine
from backend.infra.database.migrate import check_schema, migrate
from backend.infra.embedded.postgres import embedded_postgres
from backend.infra.embedded.valkey import embedded_valkey
from backend.infra.embedding import Embedder, create_embedder
from backend.infra.files import make_directories
from backend.infra.llm.extractive import ExtractiveChatModel
from backend.infra.llm.models import ChatModels, build_models
from backend.infra.periodic import every
from backend.infra.rate_limit import RateLimiter
from backend.knowledge.index.base import ChunkIndex
from backend.knowledge.index.factory import open_in_place, open_index, open_rebuild
from backend.knowledge.reindex import Reindex
from backend.knowledge.service import KnowledgeBase
from backend.log import configure_logging, get_logger
from backend.metrics import PENDING_EVENTS, POOL_CONNECTIONS, watch
from backend.rag.pipeline import RetrievalPipeline
from backend.rag.rerank import build_reranker
from backend.rag.rules import SCHEMA_RULES, answer_from_passages, answer_from_uploads
from backend.sandbox.local import LocalSandboxes
from backend.settings import Settings, load_settings
from backend.tracing import check_tracing, start_tracing

FILE_SWEEP_SECONDS = 3_600.0
"""Between two looks for directories of conversations that are gone."""
SWEEP_SECONDS = 60.0
"""Between two sweeps of the library (unfinished versions are taken back, purges done) and two looks at the index."""

DECISION_RULES_TOKENS = 1_500
"""What a grading prompt holds besides passages: its rules, the schema and a question."""

LEAST_TO_SPARE_ONE = 4
"""Connections of a worker from which on one is kept for leases and events."""

T = TypeVar("T")
_log = get_logger(__name__)


@asynccontextmanager
async def services(settings: Settings, *, migrated: bool = False) -> AsyncGenerator[Services]:
    """Everything that a process needs, started in order and closed in reverse.

    With ``migrated`` somebody else has brought the database to its schema, and an older one is refused.
    Raises ``ValueError`` (one line naming the setting), ``EmbeddedServiceError`` and what the servers raise.
    """
    async with AsyncExitStack() as stack:
        secret = _signing_key(settings)
        await _tracing(stack, settings)
        url = await (_database_url if migrated else _migrated_url)(stack, settings)
        engine, upkeep = _engines(stack, url, settings.database_pool_size)
        if migrated:
            await _reached(check_schema(engine))
        cache = await _cache(stack, settings)
        limiter = RateLimiter(cache)
        knowledge, count_tokens = await _knowledge(stack, settings, engine)
        files = _files(stack, settings, engine)
        models = _models(stack, settings)
        runtime = await _runtime(stack, settings, models, knowledge, count_tokens, files)
        chat = ChatService(
            engine,
            cache,
            limiter,
            runtime,
            settings,
            chat_rate_per_minute=settings.chat_rate_per_minute,
            count_tokens=count_tokens,
            note_model=None if models.extractive else models.fast,
            title_model=models.fast if settings.model_titles and not models.extractive else None,
            existing=knowledge.existing,
            find_collections=knowledge.collections.find,
            upkeep=upkeep,
            data_dir=settings.data_dir,
        )
        await chat.start()
        stack.push_async_callback(chat.close)
        stack.push_async_callback(chat.drain)
        watcher = asyncio.create_task(watch(partial(_sample, {engine.pool, upkeep.pool}, chat)))
        stack.callback(watcher.cancel)
        yield Services(
            engine=engine,
            cache=cache,
            rate_limiter=limiter,
            auth=create_auth_service(engine, settings, secret),
            chat=chat,
            files=files,
            knowledge=knowledge,
            api_config=settings,
            auth_config=settings,
        )


def _directories(settings: Settings) -> None:
    """What lies below ``DATA_DIR``, private, before anything else writes there."""
    try:
        make_directories(settings.data_dir)
    except OSError as error:
        raise ValueError(f"DATA_DIR: {settings.data_dir} cannot be used ({error.strerror})") from error


def _signing_key(settings: Settings) -> str:
    _directories(settings)
    return load_or_create_secret(settings.data_dir, settings.jwt_secret_key, embedded=settings.database_url is None)


async def _tracing(stack: AsyncExitStack, settings: Settings) -> None:
    endpoint = settings.otel_exporter_otlp_endpoint
    if endpoint is not None:
        headers, service = settings.otel_headers(), settings.otel_service_name
        stop = await asyncio.to_thread(start_tracing, endpoint, headers, service=service, version=__version__)
        stack.push_async_callback(asyncio.to_thread, stop)


def _engines(stack: AsyncExitStack, url: URL, connections: int) -> tuple[AsyncEngine, AsyncEngine]:
    """One for requests and turns, and one for the upkeep of runs: a single connection out of the same number, where
    one can be spared."""
    spare = connections >= LEAST_TO_SPARE_ONE
    engine = create_engine(url, pool_size=connections - spare)
    stack.push_async_callback(engine.dispose)
    if not spare:
        return engine, engine
    upkeep = create_engine(url, pool_size=1)
    stack.push_async_callback(upkeep.dispose)
    return engine, upkeep


def _sample(pools: set[Pool], chat: ChatService) -> None:
    bounded = [pool for pool in pools if isinstance(pool, QueuePool)]
    POOL_CONNECTIONS.labels("in_use").set(sum(pool.checkedout() for pool in bounded))
    POOL_CONNECTIONS.labels("size").set(sum(pool.size() for pool in bounded))
    PENDING_EVENTS.set(chat.pending_events)


async def _in_thread(stack: AsyncExitStack, context: AbstractContextManager[T]) -> T:
    """Enter a blocking context in a thread, and leave it in one at the end."""
    value = await asyncio.to_thread(context.__enter__)
    stack.push_async_callback(asyncio.to_thread, context.__exit__, None, None, None)
    return value


async def _database_url(stack: AsyncExitStack, settings: Settings) -> URL:
    if settings.database_url is None:
        return await _in_thread(stack, embedded_postgres(settings.data_dir))
    return async_url(settings.database_url.get_secret_value())


async def _cache(stack: AsyncExitStack, settings: Settings) -> Cache:
    if settings.redis_url is None:
        redis = create_redis(await _in_thread(stack, embedded_valkey(settings.data_dir)))
    else:
        redis = create_redis(settings.redis_url.get_secret_value())
    stack.push_async_callback(redis.aclose)
    return Cache(redis)


async def _knowledge(stack: AsyncExitStack, settings: Settings, engine: AsyncEngine) -> tuple[KnowledgeBase, Any]:
    embedder, index = await _open_index(stack, settings)
    knowledge = KnowledgeBase(engine, index, embedder, settings, settings.data_dir)
    for upkeep in (knowledge.sweep, knowledge.optimize):
        stack.push_async_callback(_end, asyncio.create_task(every(SWEEP_SECONDS, upkeep)))
    stack.push_async_callback(knowledge.jobs.aclose)
    stack.push_async_callback(_end, asyncio.create_task(knowledge.jobs.run()))
    return knowledge, embedder.count_tokens


async def _open_index(stack: AsyncExitStack, settings: Settings) -> tuple[Embedder, ChunkIndex]:
    embedder = await asyncio.to_thread(create_embedder, settings)
    stack.push_async_callback(embedder.aclose)
    try:
        index = await open_index(settings, settings.data_dir, dimensions=embedder.dimensions, embedder=embedder.name)
    except StorageUnavailable as error:
        raise ValueError(
            "INDEX_URL: the index cannot be reached or opened; `citewire reindex` makes it anew"
        ) from error
    stack.push_async_callback(index.aclose)
    return embedder, index


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel, and wait until it has ended what it started."""
    task.cancel()
    await asyncio.wait([task])


def _models(stack: AsyncExitStack, settings: Settings) -> ChatModels:
    models = build_models(
        settings,
        ExtractiveChatModel(
            answer_rule=answer_from_passages, uploads_rule=answer_from_uploads, schema_rules=SCHEMA_RULES
        ),
    )
    stack.push_async_callback(models.aclose)
    return models


async def _runtime(
    stack: AsyncExitStack,
    settings: Settings,
    models: ChatModels,
    knowledge: KnowledgeBase,
    count_tokens: Callable[[str], int],
    files: ThreadFiles,
) -> AgentRuntime:
    limits = PromptLimits(settings.prompt_max_tokens, settings.answer_max_tokens, count_tokens)
    http = await stack.enter_async_context(httpx.AsyncClient())
    weather = build_weather_tool(build_weather(settings, http), settings.weather_timeout_seconds)
    reranker = build_reranker(settings)
    stack.push_async_callback(reranker.aclose)
    pipeline = RetrievalPipeline(
        knowledge,
        settings,
        reranker,
        fast=models.fast,
        grade=models.grade,
        passage_tokens=limits.window - limits.answer - DECISION_RULES_TOKENS,
    )
    sandboxes = LocalSandboxes(files.locate, settings.sandbox_limits, processes=settings.sandbox_processes)
    stack.push_async_callback(sandboxes.aclose)
    return AgentRuntime(
        models.main,
        pipeline,
        [weather, *build_file_tools(ThreadTools(files.locate, sandboxes, settings))],
        max_model_calls=settings.llm_max_calls_per_turn,
        limits=None if models.extractive else limits,
        threads=Threads(files.locate, sandboxes, SANDBOXED, rule_title, files.listing, NEED_FILES, MAKE_FILES),
    )


def _files(stack: AsyncExitStack, settings: Settings, engine: AsyncEngine) -> ThreadFiles:
    files = ThreadFiles(
        engine, settings.data_dir, max_files=settings.max_files_per_session, max_bytes=settings.max_bytes_per_user
    )
    stack.push_async_callback(_end, asyncio.create_task(every(FILE_SWEEP_SECONDS, files.sweep)))
    return files


@asynccontextmanager
async def _drained_on_signal(chat: ChatService) -> AsyncGenerator[None]:
    """Begin to drain with the signal itself: streams end with their text while the server waits for them to close.

    The handlers that are there (the server's) are called as before, and put back at the end.
    """
    loop = asyncio.get_running_loop()
    tasks: list[asyncio.Task[None]] = []
    previous: dict[signal.Signals, Any] = {}

    def drain() -> None:
        if not tasks:
            tasks.append(asyncio.create_task(chat.drain()))

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(drain)
        before = previous[signal.Signals(number)]
        if callable(before):
            before(number, frame)

    if threading.current_thread() is threading.main_thread():
        for name in (signal.SIGTERM, signal.SIGINT):
            if callable(signal.getsignal(name)):
                previous[name] = signal.signal(name, handle)
    try:
        yield
    finally:
        for name, before in previous.items():
            signal.signal(name, before)


def create_app(settings: Settings | None = None) -> FastAPI:
    """The ASGI application. Nothing is connected before its lifespan starts."""
    settings = settings or load_settings()
    configure_logging(settings.log_level, secrets=settings.secret_values())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[dict[str, Services]]:
        async with services(settings, migrated=True) as built, _drained_on_signal(built.chat):
            _log.info("started", data_dir=str(settings.data_dir))
            yield {"services": built}
        _log.info("stopped")

    app = FastAPI(title="Citewire", version=__version__, lifespan=lifespan)
    app.include_router(api_router())
    install(app, settings, max_upload_bytes=settings.max_upload_bytes)
    return app


SAMPLE = Path(__file__).parent / "sample" / "citewire-guide.md"
SAMPLE_MARK = "sample-loaded"


async def prepare(settings: Settings, *, sample: bool) -> None:
    """What is done once before any worker serves: check the signing key and the index, bring the database to the newest
    schema and, with ``sample``, put the sample document into a library that never had it.

    Raises ``ValueError`` with one line that names the setting that is wrong; else as :func:`services` does.
    """
    _signing_key(settings)
    check_tracing(settings.otel_exporter_otlp_endpoint)
    async with AsyncExitStack() as stack:
        await _check_connections(await _migrated_url(stack, settings), settings)
        await _open_index(stack, settings)
    mark = settings.data_dir / SAMPLE_MARK
    if sample and not mark.exists():
        async with services(settings) as built:
            await built.knowledge.add_sample(SAMPLE)
        mark.touch()


async def _migrated_url(stack: AsyncExitStack, settings: Settings) -> URL:
    url = await _database_url(stack, settings)
    await _reached(migrate(url))
    return url


async def _reached(work: Awaitable[T]) -> T:
    try:
        return await work
    except (OSError, SQLAlchemyError) as error:
        raise ValueError("DATABASE_URL: the database cannot be reached or brought to its schema") from error


async def _check_connections(url: URL, settings: Settings) -> None:
    """Raises ``ValueError`` when the workers together may hold more connections than PostgreSQL allows."""
    needed = settings.workers * settings.database_pool_size
    allowed = await _reached(connections_allowed(url))
    if needed > allowed:
        raise ValueError(
            f"DATABASE_POOL_SIZE, WORKERS: {settings.workers} x {settings.database_pool_size} = {needed} connections, "
            f"and PostgreSQL allows {allowed}; lower one of them, or raise max_connections"
        )


@asynccontextmanager
async def accounts(settings: Settings) -> AsyncGenerator[AuthService]:
    """The accounts alone, for the operator: beside a running server or without one. Raises as :func:`prepare` does."""
    async with AsyncExitStack() as stack:
        auth, _ = await _accounts(stack, settings)
        yield auth


@asynccontextmanager
async def account_removal(settings: Settings) -> AsyncGenerator[AccountRemoval]:
    """What the end of an account needs; as :func:`accounts`."""
    async with AsyncExitStack() as stack:
        auth, engine = await _accounts(stack, settings)
        storage = ConversationStorage(engine, await _cache(stack, settings), settings.data_dir)
        knowledge, _ = await _knowledge(stack, settings, engine)
        yield AccountRemoval(auth, storage, knowledge)


async def _accounts(stack: AsyncExitStack, settings: Settings) -> tuple[AuthService, AsyncEngine]:
    secret = _signing_key(settings)
    engine = create_engine(await _migrated_url(stack, settings), pool_size=settings.database_pool_size)
    stack.push_async_callback(engine.dispose)
    return create_auth_service(engine, settings, secret), engine


@asynccontextmanager
async def reindexing(settings: Settings, *, in_place: bool = False) -> AsyncGenerator[Reindex]:
    """A rebuild of the index with the embedding model that the settings name; servers may run beside it.

    With ``in_place`` it is the index that answers, to be compared and completed. Raises as :func:`services` does.
    """
    async with AsyncExitStack() as stack:
        _directories(settings)
        engine = create_engine(await _migrated_url(stack, settings), pool_size=2)
        stack.push_async_callback(engine.dispose)
        embedder = await asyncio.to_thread(create_embedder, settings)
        stack.push_async_callback(embedder.aclose)
        opening = open_in_place if in_place else open_rebuild
        rebuild = await opening(settings, settings.data_dir, dimensions=embedder.dimensions, embedder=embedder.name)
        stack.push_async_callback(rebuild.aclose)
        yield Reindex(engine, rebuild, embedder)
