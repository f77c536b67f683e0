"""The tables of a LanceDB index: their form, and which one answers.

An index that was never rebuilt is the table ``chunks``. A rebuild fills a table of another name; the table
``generations`` is a log of them, to which rows are only ever added, so a swap is one commit and no two writers can
undo each other: the newest row with state ``current`` names the table that answers.
"""
# lancedb and pyarrow are untyped in large parts:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import lancedb
import pyarrow as pa
from lancedb.db import AsyncConnection
from lancedb.index import FTS, HnswSq
from lancedb.table import AsyncTable

FIRST, GENERATIONS = "chunks", "generations"
RETIRED_SECONDS = 3600
"""A table that was replaced is dropped after this time; until then searches that began in it end well, and servers
that still run with the former embedding model answer from it."""

ANN_ROWS = 20_000
"""From this size on the approximate index is made: below it an exact search takes some 10 ms, at 100,000 rows 45 ms."""
ANN_SEGMENTS = 16
"""Each fold adds a segment to the approximate index, and each segment is searched; beyond it is made anew as one."""
UNINDEXED_ROWS = 1_000
KEPT_SECONDS = 60.0
"""How long the files of a former state stay: whoever reads has begun with the newest and ends within this time."""

FAILURES = (RuntimeError, OSError, ValueError, TimeoutError)
"""What the library raises; it has no error class of its own."""

_WORD_INDEX = FTS(
    base_tokenizer="whitespace",
    lower_case=False,
    stem=False,
    remove_stop_words=False,
    ascii_folding=False,
    max_token_length=None,
)
_GENERATION = pa.schema(
    [
        pa.field("table", pa.string(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),  # microseconds
    ]
)


def chunk_schema(dimensions: int, embedder: str) -> Any:
    """The form of a table of leaves; it names the embedding model."""
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


def embedder_of(schema: Any) -> str:
    """The embedding model that the vectors of a table come from."""
    return (schema.metadata or {}).get(b"embedder", b"").decode()


async def same_vectors(table: AsyncTable, schema: Any) -> bool:
    """Whether the vectors of ``table`` are of the model and the length that ``schema`` says."""
    found = await table.schema()
    return embedder_of(found) == embedder_of(schema) and found.field("vector").type == schema.field("vector").type


async def connect(uri: str) -> AsyncConnection:
    """A connection whose handles see at once what others wrote."""
    return await lancedb.connect_async(uri, read_consistency_interval=timedelta(0))


async def open_or_make(connection: AsyncConnection, name: str, schema: Any) -> AsyncTable:
    """The table of leaves of that name with its word index."""
    try:
        table = await connection.open_table(name)
    except ValueError:  # not there; when another process makes it now, the same schema is accepted
        table = await connection.create_table(name, schema=schema, exist_ok=True)
    await _ensure_word_index(table)
    return table


async def _ensure_word_index(table: AsyncTable) -> None:
    if any(index.columns == ["words"] for index in await table.list_indices()):
        return
    try:
        await table.create_index("words", config=_WORD_INDEX, replace=False)
    except RuntimeError:  # another process was faster
        if not any(index.columns == ["words"] for index in await table.list_indices()):
            raise


async def ann_is_due(table: AsyncTable, ann_rows: int) -> bool:
    """Whether the approximate index is to be made, for the first time or anew."""
    if await table.count_rows() < ann_rows:
        return False
    found = [index for index in await table.list_indices() if index.columns == ["vector"]]
    return not found or (found[0].num_segments or 0) > ANN_SEGMENTS


async def tail_is_long(table: AsyncTable) -> bool:
    """Whether many rows are in no index yet."""
    return any((index.num_unindexed_rows or 0) >= UNINDEXED_ROWS for index in await table.list_indices())


async def fold(table: AsyncTable, ann_rows: int) -> None:
    """Takes all rows into the indexes, makes the approximate one when it is due, and drops old versions.

    Of what was deleted nothing stays in the files, once it is ``KEPT_SECONDS`` ago: the library rewrites a file by
    itself only when a tenth of its rows is deleted, and its word index keeps the words.
    """
    erasing = await holds_deleted(table)
    if erasing:
        await _touch_one(table)
        await table.create_index("words", config=_WORD_INDEX, replace=True)
    if await ann_is_due(table, ann_rows) or (erasing and await _has_ann(table)):
        await table.create_index("vector", config=HnswSq(distance_type="cosine"), replace=True)
    await table.optimize(cleanup_older_than=timedelta(seconds=KEPT_SECONDS))


async def _has_ann(table: AsyncTable) -> bool:
    return any(index.columns == ["vector"] for index in await table.list_indices())


async def holds_deleted(table: AsyncTable) -> bool:
    """Whether files hold rows that were deleted."""
    versions: list[dict[str, Any]] = await table.list_versions()
    return int(versions[-1]["metadata"].get("total_deletion_file_rows", "0")) > 0


async def holds_old(table: AsyncTable) -> bool:
    """Whether there are versions that can be dropped now."""
    versions: list[dict[str, Any]] = await table.list_versions()
    oldest = datetime.now(UTC) - timedelta(seconds=KEPT_SECONDS)
    return len(versions) > 1 and versions[-2]["timestamp"].astimezone(UTC) < oldest


async def _touch_one(table: AsyncTable) -> None:
    """Writes one row anew as it is: files are only rewritten when there are two, and indexes that cover both alike."""
    found: Any = await table.query().select(["chunk_id"]).limit(1).to_arrow()
    for chunk_id in found.column("chunk_id").to_pylist():
        await table.update(where=f"chunk_id = '{chunk_id}'", updates_sql={"shared": "shared"})


@dataclass(frozen=True, slots=True)
class _Entry:
    table: str
    state: str
    at: int


class Generations:
    """The log of tables."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._log: AsyncTable | None = None

    async def current(self) -> str:
        """The table that answers."""
        return _current(await self._entries())

    async def building(self) -> str | None:
        """The table that a rebuild fills now, or that one left unfinished."""
        entries = await self._entries()
        newest = entries[-1] if entries else None
        return newest.table if newest is not None and newest.state == "building" else None

    async def begin(self) -> str:
        """A new name for a table that is going to be filled."""
        name = f"{FIRST}_{uuid4().hex}"
        await self._append(name, "building")
        return name

    async def publish(self, name: str) -> None:
        """Makes ``name`` the table that answers, unless it is already or was once."""
        entries = await self._entries()
        if not any(entry.table == name and entry.state == "current" for entry in entries):
            await self._append(name, "current")

    async def retired(self) -> list[str]:
        """The tables before the one that answers, once it has answered for ``RETIRED_SECONDS``."""
        entries = await self._entries()
        last = next((entry for entry in reversed(entries) if entry.state == "current"), None)
        if last is None or last.at > _now() - RETIRED_SECONDS * 1_000_000:
            return []
        kept = {entry.table for entry in entries if entry.at >= last.at}
        return sorted({FIRST, *(entry.table for entry in entries)} - kept)

    async def _entries(self) -> list[_Entry]:
        """Oldest first."""
        if self._log is None:
            try:
                self._log = await self._connection.open_table(GENERATIONS)
            except ValueError:  # never rebuilt
                return []
        rows: list[dict[str, Any]] = (await self._log.query().to_arrow()).to_pylist()
        return sorted((_Entry(row["table"], row["state"], row["at"]) for row in rows), key=lambda entry: entry.at)

    async def _append(self, name: str, state: str) -> None:
        if self._log is None:
            self._log = await self._connection.create_table(GENERATIONS, schema=_GENERATION, exist_ok=True)
        entries = await self._entries()
        at = max(_now(), entries[-1].at + 1 if entries else 0)
        await self._log.add(pa.Table.from_pylist([{"table": name, "state": state, "at": at}], schema=_GENERATION))


def _current(entries: list[_Entry]) -> str:
    return next((entry.table for entry in reversed(entries) if entry.state == "current"), FIRST)


def _now() -> int:
    return time.time_ns() // 1000
