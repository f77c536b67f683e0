"""LanceDB as chunk index: a directory or an object store, no server. Several processes may share it."""
# lancedb and pyarrow are untyped in large parts:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import asyncio
import contextlib
import logging
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Collection, Sequence
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import pyarrow as pa
from lancedb.db import AsyncConnection
from lancedb.query import MatchQuery
from lancedb.table import AsyncTable

from backend.errors import StorageUnavailable
from backend.knowledge.index.base import ARM_DEPTH, NOBODY, Arm, ArmHits, IndexHits, IndexRow, ask
from backend.knowledge.index.lance_tables import (
    ANN_ROWS,
    FAILURES,
    Generations,
    ann_is_due,
    chunk_schema,
    connect,
    embedder_of,
    fold,
    holds_deleted,
    holds_old,
    open_or_make,
    same_vectors,
    tail_is_long,
)

logger = logging.getLogger(__name__)

SEARCH_SECONDS, WRITE_SECONDS, SCAN_SECONDS = 10.0, 60.0, 300.0
FOLD_SECONDS, BUILD_SECONDS = 600.0, 4 * 3600.0
FOLLOW_SECONDS = 2.0
"""How long a search may go on in a table that was replaced meanwhile; writes look each time."""
ADD_BATCH = 2_000
ERASE_SHARE = 20
UNFOLDED_WRITES = 32
"""After so many writes, each of which left a small file, the table is folded."""

_WORKER = "backend.knowledge.index.lance_worker"


class LanceChunkIndex:
    """Both arms are asked at once and fused here, so each hit knows its rank in each arm.

    A handle follows the log of tables, except one that is ``pinned``. When a rebuild with another embedding model
    was published the handle goes on answering from its table and refuses writes: its vectors are not wanted any more.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        table: AsyncTable,
        schema: Any,
        *,
        pinned: bool = False,
        ann_rows: int = ANN_ROWS,
    ) -> None:
        self._connection = connection
        self._generations = Generations(connection)
        self._table = table
        self._schema = schema
        self._pinned = pinned
        self._ann_rows = ann_rows
        self._replaced: AsyncTable | None = None
        self._looked = time.monotonic()
        self._writes = 0
        self._erased = self._erase_again = 0.0
        self._optimizing = asyncio.Lock()

    @classmethod
    async def open(cls, uri: str, *, dimensions: int, embedder: str, ann_rows: int = ANN_ROWS) -> Self:
        """Opens or makes the index at ``uri``; from ``ann_rows`` leaves on the vector arm becomes approximate.

        Raises ``ValueError`` when it was made with another embedding model, :class:`StorageUnavailable` when
        it cannot be opened.
        """
        schema = chunk_schema(dimensions, embedder)
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                connection = await connect(uri)
                table = await open_or_make(connection, await Generations(connection).current(), schema)
                stored, fits = embedder_of(await table.schema()), await same_vectors(table, schema)
        except FAILURES as error:
            raise StorageUnavailable(retry_after=1) from error
        if not fits:
            raise ValueError(
                f"EMBEDDING_MODEL: the index was made with {stored!r}, not {embedder!r} of {dimensions} dimensions;"
                " run `citewire reindex` to make it anew with this one, or set the former model"
            )
        return cls(connection, table, schema, ann_rows=ann_rows)

    # --- which table --------------------------------------------------------------------------------------------

    async def _follow(self) -> bool:
        """Goes over to the table that answers now; whether that was another one. Raises ``FAILURES``."""
        self._looked = time.monotonic()
        if self._pinned:
            return False
        name = await self._generations.current()
        if name in {self._table.name, self._replaced.name if self._replaced else ""}:
            return False
        table = await self._connection.open_table(name)
        if not await same_vectors(table, self._schema):
            logger.error("the index was rebuilt with another embedding model: restart with that EMBEDDING_MODEL")
            self._replaced = table
            return False
        self._table, self._replaced = table, None
        return True

    async def _follow_now_and_then(self) -> None:
        if time.monotonic() - self._looked < FOLLOW_SECONDS:
            return
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                await self._follow()
        except FAILURES as error:  # the table at hand may still answer
            logger.warning("the log of tables could not be read", exc_info=error)

    async def generation(self) -> str:
        async with _bounded(WRITE_SECONDS):
            await self._follow()
            return self._replaced.name if self._replaced else self._table.name

    # --- writing ------------------------------------------------------------------------------------------------

    async def add(self, rows: Sequence[IndexRow]) -> None:
        for start in range(0, len(rows), ADD_BATCH):
            batch = await asyncio.to_thread(self._to_arrow, rows[start : start + ADD_BATCH])
            async with _bounded(WRITE_SECONDS):
                await self._follow()
                if self._replaced is not None:
                    raise StorageUnavailable()
                merge = self._table.merge_insert("chunk_id").when_matched_update_all().when_not_matched_insert_all()
                await merge.execute(batch)
            self._writes += 1

    def _to_arrow(self, rows: Sequence[IndexRow]) -> Any:
        unique = {row.chunk_id: row for row in rows}.values()
        columns = {
            "chunk_id": [str(row.chunk_id) for row in unique],
            "version_id": [str(row.version_id) for row in unique],
            "owner_id": [str(row.owner_id or NOBODY) for row in unique],
            "shared": [row.shared for row in unique],
            "words": [row.words for row in unique],
            "vector": [list(row.vector) for row in unique],
        }
        return pa.Table.from_pydict(columns, schema=self._schema)

    async def delete_version(self, version_id: UUID) -> None:
        async with _bounded(WRITE_SECONDS):
            await self._follow()
            for table in filter(None, (self._table, self._replaced)):
                await table.delete(f"version_id = '{UUID(str(version_id))}'")
        self._writes += 1

    # --- reading ------------------------------------------------------------------------------------------------

    async def search(
        self,
        query_vector: Sequence[float] | None,
        query_words: str,
        *,
        limit: int,
        user_id: UUID,
        versions: Collection[UUID] | None = None,
    ) -> IndexHits:
        # The only values in the filter are UUIDs that are rendered here; nothing a user wrote can get into it.
        allowed = f"(shared = true OR owner_id = '{UUID(str(user_id))}')"
        if versions is not None:
            allowed += f" AND version_id IN ({_listed(versions)})"
        await self._follow_now_and_then()
        try:
            return await self._search(query_vector, query_words, limit, allowed)
        except StorageUnavailable:
            async with _bounded(SEARCH_SECONDS):
                moved = await self._follow()
            if not moved:
                raise
            return await self._search(query_vector, query_words, limit, allowed)

    async def _search(
        self, query_vector: Sequence[float] | None, query_words: str, limit: int, allowed: str
    ) -> IndexHits:
        depth = max(limit, ARM_DEPTH)
        asked: dict[Arm, Awaitable[ArmHits]] = {}
        if query_vector is not None:
            asked["dense"] = self._dense(list(query_vector), allowed, depth)
        if query_words:
            asked["sparse"] = self._sparse(query_words, allowed, depth)
        return await ask(asked, FAILURES, limit)

    async def _dense(self, vector: list[float], allowed: str, depth: int) -> ArmHits:
        query = self._table.query().nearest_to(vector).distance_type("cosine")
        distances = await _scores(query.where(allowed).limit(depth), "_distance")
        return {chunk_id: 1 - distance for chunk_id, distance in distances.items()}

    async def _sparse(self, words: str, allowed: str, depth: int) -> ArmHits:
        query = self._table.query().nearest_to_text(MatchQuery(words, "words"))  # pyright: ignore[reportCallIssue]  # pydantic dataclass
        return await _scores(query.where(allowed).limit(depth), "_score")

    async def versions(self) -> dict[UUID, int]:
        counts: Counter[str] = Counter()
        async with _bounded(SCAN_SECONDS):
            async for batch in await self._table.query().select(["version_id"]).to_batches():
                counts.update(batch.column("version_id").to_pylist())
        return {UUID(version_id): count for version_id, count in counts.items()}

    async def missing(self, chunk_ids: Collection[UUID]) -> set[UUID]:
        if not chunk_ids:
            return set()
        async with _bounded(SCAN_SECONDS):
            query = self._table.query().where(f"chunk_id IN ({_listed(chunk_ids)})").select(["chunk_id"])
            found: Any = await query.to_arrow()
        return set(chunk_ids) - {UUID(value) for value in found.column("chunk_id").to_pylist()}

    # --- upkeep -------------------------------------------------------------------------------------------------

    async def optimize(self) -> None:
        if self._optimizing.locked():
            return
        async with self._optimizing:
            try:
                await self._optimize()
                await self._drop_retired()
            except FAILURES as error:  # another process may fold at the same time; the next one will do
                logger.warning("the index could not be optimized", exc_info=error)

    async def _optimize(self) -> None:
        large = await self._table.count_rows() >= self._ann_rows
        due = self._writes >= UNFOLDED_WRITES or await tail_is_long(self._table) or await self._erasing_is_due()
        if not due and not (large and await ann_is_due(self._table, self._ann_rows)):
            return
        self._writes, began = 0, time.monotonic()
        if large:
            await self._fold_apart()
        else:
            async with asyncio.timeout(FOLD_SECONDS):
                await fold(self._table, self._ann_rows)
        self._erased, self._erase_again = time.monotonic(), ERASE_SHARE * (time.monotonic() - began)

    async def _erasing_is_due(self) -> bool:
        """Whether deleted rows are in the files still, or files of former states: after every deletion, but no more
        often than the work is a ``ERASE_SHARE``-th of the time."""
        if time.monotonic() - self._erased < self._erase_again:
            return False
        return await holds_deleted(self._table) or await holds_old(self._table)

    async def _fold_apart(self) -> None:
        """Folds in a process of its own: in this one, searches and writes would wait for the library's threads."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            _WORKER,
            await asyncio.to_thread(_from_anywhere, self._connection.uri),
            self._table.name,
            str(self._ann_rows),
            cwd=_ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(BUILD_SECONDS):
                code = await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.shield(process.wait())
        if code != 0:
            logger.warning("the index could not be folded: its process ended with %s", code)

    async def _drop_retired(self) -> None:
        async with asyncio.timeout(FOLD_SECONDS):
            for name in await self._generations.retired():
                if name != self._table.name:  # a handle with the former embedding model still answers from it
                    with contextlib.suppress(ValueError):  # dropped before
                        await self._connection.drop_table(name)

    async def aclose(self) -> None:
        self._table.close()
        self._connection.close()


_ROOT = Path(__file__).parents[3]
"""Where the package ``backend`` lies."""


class LanceRebuild:
    """A rebuild of the index at a place: a table of its own, known to every process that asks for it."""

    def __init__(self, connection: AsyncConnection, index: LanceChunkIndex, table: AsyncTable, ann_rows: int) -> None:
        self.index = index
        self._connection = connection
        self._table = table
        self._ann_rows = ann_rows

    @classmethod
    async def open(cls, uri: str, *, dimensions: int, embedder: str, ann_rows: int = ANN_ROWS) -> Self:
        """Begins a rebuild at ``uri``, or takes up the one that was left there with the same embedding model.

        Raises :class:`StorageUnavailable`.
        """
        schema = chunk_schema(dimensions, embedder)
        async with _bounded(WRITE_SECONDS):
            connection = await connect(uri)
            generations = Generations(connection)
            table = None
            if (name := await generations.building()) is not None:
                table = await open_or_make(connection, name, schema)
            if table is None or not await same_vectors(table, schema):
                table = await open_or_make(connection, await generations.begin(), schema)
            index = LanceChunkIndex(connection, table, schema, pinned=True, ann_rows=ann_rows)
            return cls(connection, index, table, ann_rows)

    async def publish(self) -> None:
        async with _bounded(BUILD_SECONDS):
            await fold(self._table, self._ann_rows)
            await Generations(self._connection).publish(self._table.name)

    async def aclose(self) -> None:
        await self.index.aclose()


def _listed(ids: Collection[UUID]) -> str:
    """``ids`` as a list in a filter."""
    return ", ".join(f"'{UUID(str(one))}'" for one in ids) or "''"


def _from_anywhere(uri: str) -> str:
    """``uri`` for a process with another working directory."""
    return str(Path(uri).resolve()) if Path(uri).is_dir() else uri


@contextlib.asynccontextmanager
async def _bounded(seconds: float) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except FAILURES as error:
        raise StorageUnavailable(retry_after=1) from error


async def _scores(query: Any, column: str) -> ArmHits:
    """What ``query`` finds, in its order, with the value of ``column``; a leaf that is there twice counts once."""
    async with asyncio.timeout(SEARCH_SECONDS):
        table: Any = await query.select(["chunk_id", column]).to_arrow()
    found: ArmHits = {}
    for value, score in zip(table.column("chunk_id").to_pylist(), table.column(column).to_pylist(), strict=True):
        found.setdefault(UUID(value), score)
    return found
