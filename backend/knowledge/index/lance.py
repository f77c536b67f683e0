"""LanceDB as chunk index: a directory or an object store, no server. Several processes may share it."""
# lancedb and pyarrow are untyped in large parts:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any, Self
from uuid import UUID

import lancedb
import pyarrow as pa
from lancedb.db import AsyncConnection
from lancedb.index import FTS
from lancedb.query import MatchQuery
from lancedb.table import AsyncTable

from backend.errors import StorageUnavailable
from backend.knowledge.index.base import ARM_DEPTH, Arm, IndexHits, IndexRow, Mode, fuse

logger = logging.getLogger(__name__)

TABLE = "chunks"
NOBODY = UUID(int=0)
"""The owner in the index of what came with the install."""

SEARCH_SECONDS, WRITE_SECONDS, OPTIMIZE_SECONDS = 10.0, 60.0, 600.0
ADD_BATCH = 2_000
UNINDEXED_ROWS, UNFOLDED_WRITES = 1_000, 32
"""Beyond either the tail is folded: rows that the word index does not hold yet, writes that each left a small file."""

_FAILURES = (RuntimeError, OSError, ValueError, TimeoutError)
"""What the library raises; it has no error class of its own."""

_WORD_INDEX = FTS(
    base_tokenizer="whitespace",
    lower_case=False,
    stem=False,
    remove_stop_words=False,
    ascii_folding=False,
    max_token_length=None,
)


def _schema(dimensions: int, embedder: str) -> Any:
    return pa.schema(
        [
            pa.field("chunk_id", pa.string(), nullable=False),
            pa.field("version_id", pa.string(), nullable=False),
            pa.field("owner_id", pa.string(), nullable=False),
            pa.field("shared", pa.bool_(), nullable=False),
            pa.field("words", pa.string(), nullable=False),
            pa.field("vector", pa.list_(pa.float32(), dimensions), nullable=False),
        ],
        metadata={"embedder": embedder},
    )


class LanceChunkIndex:
    """Both arms are asked at once and fused here, so each hit knows its rank in each arm."""

    def __init__(self, connection: AsyncConnection, table: AsyncTable, schema: Any) -> None:
        self._connection = connection
        self._table = table
        self._schema = schema
        self._writes = 0
        self._optimizing = asyncio.Lock()

    @classmethod
    async def open(cls, uri: str, *, dimensions: int, embedder: str) -> Self:
        """Opens or makes the index at ``uri``.

        Raises ``ValueError`` when it was made with another embedding model, :class:`StorageUnavailable` when
        it cannot be opened.
        """
        schema = _schema(dimensions, embedder)
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                connection = await lancedb.connect_async(uri, read_consistency_interval=timedelta(0))
                table = await _open_or_make(connection, schema)
                found = await table.schema()
                await _ensure_word_index(table)
        except _FAILURES as error:
            raise StorageUnavailable(retry_after=1) from error
        stored = (found.metadata or {}).get(b"embedder", b"").decode()
        if stored != embedder or found.field("vector").type != schema.field("vector").type:
            raise ValueError(f"EMBEDDING_MODEL: the index was made with {stored!r}, not {embedder!r}; remove it first")
        return cls(connection, table, schema)

    async def add(self, rows: Sequence[IndexRow]) -> None:
        for start in range(0, len(rows), ADD_BATCH):
            batch = await asyncio.to_thread(self._to_arrow, rows[start : start + ADD_BATCH])
            await _bounded(self._table.add(batch))
            self._writes += 1

    def _to_arrow(self, rows: Sequence[IndexRow]) -> Any:
        columns = {
            "chunk_id": [str(row.chunk_id) for row in rows],
            "version_id": [str(row.version_id) for row in rows],
            "owner_id": [str(row.owner_id or NOBODY) for row in rows],
            "shared": [row.shared for row in rows],
            "words": [row.words for row in rows],
            "vector": [list(row.vector) for row in rows],
        }
        return pa.Table.from_pydict(columns, schema=self._schema)

    async def delete_version(self, version_id: UUID) -> None:
        await _bounded(self._table.delete(f"version_id = '{UUID(str(version_id))}'"))
        self._writes += 1

    async def search(
        self, query_vector: Sequence[float] | None, query_words: str, *, limit: int, user_id: UUID
    ) -> IndexHits:
        # The only value in the filter is a UUID that is rendered here; nothing a user wrote can get into it.
        allowed = f"shared = true OR owner_id = '{UUID(str(user_id))}'"
        depth = max(limit, ARM_DEPTH)
        asked: dict[Arm, Awaitable[list[UUID]]] = {}
        if query_vector is not None:
            asked["dense"] = self._dense(list(query_vector), allowed, depth)
        if query_words:
            asked["sparse"] = self._sparse(query_words, allowed, depth)
        answers = await asyncio.gather(*asked.values(), return_exceptions=True)
        ranked: dict[Arm, list[UUID]] = {}
        for arm, answer in zip(asked, answers, strict=True):
            if not isinstance(answer, BaseException):
                ranked[arm] = answer
            elif isinstance(answer, _FAILURES):
                logger.warning("the %s arm of the index failed", arm, exc_info=answer)
            else:
                raise answer
        if asked and not ranked:
            raise StorageUnavailable(retry_after=1)
        return IndexHits(fuse(ranked, limit), _mode(ranked))

    async def _dense(self, vector: list[float], allowed: str, depth: int) -> list[UUID]:
        query = self._table.query().nearest_to(vector).distance_type("cosine")
        return await _ids(query.where(allowed).limit(depth).select(["chunk_id", "_distance"]))

    async def _sparse(self, words: str, allowed: str, depth: int) -> list[UUID]:
        query = self._table.query().nearest_to_text(MatchQuery(words, "words"))  # pyright: ignore[reportCallIssue]  # pydantic dataclass
        return await _ids(query.where(allowed).limit(depth).select(["chunk_id", "_score"]))

    async def optimize(self) -> None:
        if self._optimizing.locked():
            return
        async with self._optimizing:
            try:
                async with asyncio.timeout(OPTIMIZE_SECONDS):
                    if await self._is_due():
                        await self._table.optimize(cleanup_older_than=timedelta(hours=1))
                        self._writes = 0
            except _FAILURES as error:  # another process may fold at the same time; the next one will do
                logger.warning("the index could not be optimized", exc_info=error)

    async def _is_due(self) -> bool:
        if self._writes >= UNFOLDED_WRITES:
            return True
        stats = await self._table.index_stats("words_idx")
        return stats is not None and stats.num_unindexed_rows >= UNINDEXED_ROWS

    async def aclose(self) -> None:
        self._table.close()
        self._connection.close()


async def _open_or_make(connection: AsyncConnection, schema: Any) -> AsyncTable:
    try:
        return await connection.open_table(TABLE)
    except ValueError:  # not there; when another process makes it now, the same schema is accepted
        return await connection.create_table(TABLE, schema=schema, exist_ok=True)


async def _ensure_word_index(table: AsyncTable) -> None:
    if any(index.columns == ["words"] for index in await table.list_indices()):
        return
    try:
        await table.create_index("words", config=_WORD_INDEX, replace=False)
    except RuntimeError:  # another process was faster
        if not any(index.columns == ["words"] for index in await table.list_indices()):
            raise


async def _bounded(call: Awaitable[Any]) -> None:
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            await call
    except _FAILURES as error:
        raise StorageUnavailable(retry_after=1) from error


async def _ids(query: Any) -> list[UUID]:
    async with asyncio.timeout(SEARCH_SECONDS):
        table: Any = await query.to_arrow()
    return [UUID(value) for value in table.column("chunk_id").to_pylist()]


def _mode(ranked: dict[Arm, list[UUID]]) -> Mode:
    if len(ranked) == 1:
        return next(iter(ranked))
    return "hybrid"
