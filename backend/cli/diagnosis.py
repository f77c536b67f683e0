"""The checks of ``citewire doctor``, in the order in which the server needs what they look at."""

import asyncio
import os
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack
from datetime import UTC, datetime
from typing import TypeVar
from uuid import UUID

import asyncpg
from redis.exceptions import RedisError
from sqlalchemy import URL, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from backend.cli.endpoint_checks import check_chat_model, check_embedder, check_reranker
from backend.cli.findings import Finding, failed, ok, warn
from backend.cli.local_checks import (
    check_data_dir,
    check_env_file,
    check_platform,
    check_port,
    check_settings,
    check_signing_key,
)
from backend.errors import ProviderError, StorageUnavailable
from backend.infra.cache import create_redis
from backend.infra.database.engine import async_url, create_engine, transaction
from backend.infra.database.migrate import revisions, stored_revision
from backend.infra.database.tables import Document, DocumentVersion
from backend.infra.embedded.errors import EmbeddedServiceError
from backend.infra.embedded.postgres import embedded_postgres
from backend.infra.embedded.valkey import embedded_valkey
from backend.infra.embedding import Embedder
from backend.infra.files import DOCUMENTS, INDEX
from backend.knowledge.index.factory import open_index
from backend.log import configure_logging
from backend.settings import Settings

OLDEST_POSTGRES = 18
CLOCK_SECONDS = 5.0
_NOT_LOOKED_AT = "not looked at: PostgreSQL does not answer"
_DATABASE_ERRORS = (StorageUnavailable, SQLAlchemyError, asyncpg.PostgresError, OSError, TimeoutError)
T = TypeVar("T")


def diagnose(report: Callable[[Finding], None]) -> None:
    """Run every check and hand on what each finds, as soon as it is known."""
    report(check_platform())
    for finding in check_env_file():
        report(finding)
    settings = check_settings()
    if not isinstance(settings, Settings):
        for finding in settings:
            report(finding)
        report(warn("Everything else", "not looked at before the options are right", "citewire doctor"))
        return
    report(ok("Options", "all can be used"))
    configure_logging("critical", secrets=settings.secret_values())
    for finding in check_data_dir(settings.data_dir):
        report(finding)
    report(check_signing_key(settings))
    asyncio.run(_ask_services(settings, report))


async def _ask_services(settings: Settings, report: Callable[[Finding], None]) -> None:
    async with AsyncExitStack() as stack:
        examination = _Examination(settings, stack)
        async for finding in examination.findings():
            report(finding)


class _Examination:
    """The services of one install, started or connected to as the server would."""

    def __init__(self, settings: Settings, stack: AsyncExitStack) -> None:
        self._settings = settings
        self._stack = stack
        self._engine: AsyncEngine | None = None

    async def findings(self) -> AsyncGenerator[Finding]:
        """Every finding, in order."""
        async for finding in self._database():
            yield finding
        yield await self._cache()
        embedder, finding = await check_embedder(self._settings)
        yield finding
        if embedder is not None:
            self._stack.push_async_callback(embedder.aclose)
            async for finding in self._index(embedder):
                yield finding
        yield await asyncio.to_thread(check_port, self._settings)
        yield await check_chat_model(self._settings)
        yield await check_reranker(self._settings)

    # --- PostgreSQL ---

    async def _database(self) -> AsyncIterator[Finding]:
        if self._database_is_gone():
            place = self._settings.data_dir / "postgres"
            text = f"{place} is gone, though there are documents; the server would begin with an empty database"
            yield failed("PostgreSQL", text, f"put a backup of it in its place, then: ls {shlex.quote(str(place))}")
            return
        try:
            url = await self._database_url()
        except EmbeddedServiceError as error:
            yield failed("PostgreSQL", str(error), self._postgres_remedy())
            return
        engine = create_engine(url, pool_size=1)
        self._stack.push_async_callback(engine.dispose)
        try:
            async with transaction(engine) as connection:
                yield await _version(connection)
                yield await _clock(connection)
            self._engine = engine
            yield await _schema(engine)
        except _DATABASE_ERRORS as error:
            yield failed("PostgreSQL", f"does not answer: {self._told(error)}", "check DATABASE_URL in .env")

    async def _database_url(self) -> URL:
        if self._settings.database_url is not None:
            return async_url(self._settings.database_url.get_secret_value())
        return await self._entered(embedded_postgres(self._settings.data_dir))

    def _database_is_gone(self) -> bool:
        """Whether starting the embedded server would make a new database beside the files of an old one."""
        data_dir = self._settings.data_dir
        if self._settings.database_url is not None or os.path.lexists(data_dir / "postgres"):
            return False
        documents = data_dir / DOCUMENTS
        return documents.is_dir() and any(documents.iterdir())

    def _postgres_remedy(self) -> str | None:
        look = self._look_at("postgres.log")
        if look is None:
            return None
        data = shlex.quote(str(self._settings.data_dir / "postgres"))
        return f"{look} (why); if the data are damaged: mv {data} {data}.broken, and put a backup in their place"

    def _look_at(self, log: str) -> str | None:
        path = self._settings.data_dir / log
        return f"tail -n 20 {shlex.quote(str(path))}" if path.is_file() else None  # else it was told before

    # --- Redis ---

    async def _cache(self) -> Finding:
        what = "Cache"
        try:
            if self._settings.redis_url is None:
                url = await self._entered(embedded_valkey(self._settings.data_dir))
            else:
                url = self._settings.redis_url.get_secret_value()
        except EmbeddedServiceError as error:
            return failed(what, str(error), self._look_at("valkey.log"))
        redis = create_redis(url)
        try:
            await redis.ping()  # pyright: ignore[reportGeneralTypeIssues, reportUnknownMemberType]  # untyped
        except (RedisError, OSError) as error:
            text = f"does not answer: {self._told(error)}; everything works without it, only slower"
            return warn(what, text, "check REDIS_URL in .env")
        finally:
            await redis.aclose()
        return ok(what, "answers")

    # --- index ---

    async def _index(self, embedder: Embedder) -> AsyncIterator[Finding]:
        what, settings = "Index", self._settings
        aside = "citewire reindex"
        if settings.index_url is None:
            place = settings.data_dir / INDEX
            if not place.exists():  # opening would make it
                yield await self._without_index()
                return
            quoted = shlex.quote(str(place))
            aside = f"mv {quoted} {quoted}.broken && citewire reindex"
        try:
            index = await open_index(
                settings, settings.data_dir, dimensions=embedder.dimensions, embedder=embedder.name
            )
        except ValueError as error:
            yield failed(what, str(error), "citewire reindex")
            return
        except (StorageUnavailable, OSError) as error:
            yield failed(what, f"cannot be opened: {self._told(error)}", aside)
            return
        self._stack.push_async_callback(index.aclose)
        if self._engine is None:
            yield warn(what, f"opens; its rows were {_NOT_LOOKED_AT}")
            return
        try:
            yield _compare(await _versions(self._engine), await index.versions())
        except _DATABASE_ERRORS as error:
            yield failed(what, f"cannot be counted: {self._told(error)}", aside)

    async def _without_index(self) -> Finding:
        if self._engine is None:
            return warn("Index", f"there is none; whether there should be was {_NOT_LOOKED_AT}")
        wanted = await _versions(self._engine)
        return _compare(wanted, {}) if wanted else ok("Index", "there is none yet; the server makes it")

    # --- both ---

    async def _entered(self, context: AbstractContextManager[T]) -> T:
        value = await asyncio.to_thread(context.__enter__)
        self._stack.push_async_callback(asyncio.to_thread, context.__exit__, None, None, None)
        return value

    def _told(self, error: BaseException) -> str:
        """What a driver says, without any configured secret."""
        cause = error.__cause__ if isinstance(error, StorageUnavailable | ProviderError) else error
        cause = getattr(cause, "orig", None) or cause or error
        told = str(cause).partition("\n")[0] or type(cause).__name__
        for secret in self._settings.secret_values():
            told = told.replace(secret, "***")
        return told[:160]


async def _version(connection: AsyncConnection) -> Finding:
    version = (await connection.execute(text("show server_version"))).scalar_one()
    number = int((await connection.execute(text("show server_version_num"))).scalar_one()) // 10_000
    if number < OLDEST_POSTGRES:
        return failed("PostgreSQL", f"{version} is too old: {OLDEST_POSTGRES} or newer is needed", "upgrade PostgreSQL")
    return ok("PostgreSQL", f"{version} answers")


async def _clock(connection: AsyncConnection) -> Finding:
    there: datetime = (await connection.execute(text("select clock_timestamp()"))).scalar_one()
    apart = abs((datetime.now(UTC) - there).total_seconds())
    if apart > CLOCK_SECONDS:
        return warn("Clock", f"{apart:.0f} s apart from the one of PostgreSQL", "sudo timedatectl set-ntp true")
    return ok("Clock", "agrees with PostgreSQL")


async def _schema(engine: AsyncEngine) -> Finding:
    stored = await stored_revision(engine)
    known = await asyncio.to_thread(revisions)
    if stored is None:
        return ok("Schema", "the database is empty; the server makes it at its start")
    if stored == known[-1]:
        return ok("Schema", f"is the newest ({stored})")
    if stored in known:
        return warn("Schema", f"{stored} is not the newest ({known[-1]})", "citewire serve (it migrates at its start)")
    return failed("Schema", f"{stored} was made by a newer Citewire than this one", "git pull && make install")


async def _versions(engine: AsyncEngine) -> dict[UUID, int | None]:
    """The leaves of each version that answers; ``None`` for one that is being made."""
    if await stored_revision(engine) is None:
        return {}
    versions = (
        select(DocumentVersion.id, DocumentVersion.chunk_count, DocumentVersion.status)
        .outerjoin(Document, Document.current_version_id == DocumentVersion.id)
        .where(Document.id.is_not(None) | (DocumentVersion.status == "processing"))
    )
    async with transaction(engine) as connection:
        rows = await connection.execute(versions)
        return {row.id: row.chunk_count if row.status == "ready" else None for row in rows}


def _compare(wanted: Mapping[UUID, int | None], indexed: Mapping[UUID, int]) -> Finding:
    """The leaves in PostgreSQL against the rows of the index, version by version."""
    what = "Index"
    ready = {key: count for key, count in wanted.items() if count is not None}
    missing = sum(max(0, count - indexed.get(key, 0)) for key, count in ready.items())
    extra = sum(count for key, count in indexed.items() if key not in wanted)
    total = sum(ready.values())
    if missing:
        return failed(what, f"{missing} of {total} passages are not in it and cannot be found", "citewire reindex")
    if extra:
        return warn(what, f"{total} passages, and {extra} of deleted documents; the server removes them while it runs")
    return ok(what, f"{total} passages of {len(ready)} documents, as in PostgreSQL")
