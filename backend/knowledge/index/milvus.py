"""Milvus as chunk index: a server that several hosts share. Imported only when it is chosen (extra ``milvus``).

Which collection answers is said by an alias, so a swap is one call. A collection's name tells the embedding model.
"""
# pymilvus is untyped in large parts:
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

import asyncio
import contextlib
import hashlib
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Collection, Sequence
from typing import Any, Self
from uuid import UUID, uuid4

import grpc
from pymilvus import AsyncMilvusClient, DataType, Function, FunctionType, MilvusException

from backend.errors import StorageUnavailable
from backend.knowledge.index.base import ARM_DEPTH, NOBODY, Arm, ArmHits, IndexHits, IndexRow, ask

logger = logging.getLogger(__name__)
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it prints each refusal, which is raised as well

FAILURES = (MilvusException, grpc.RpcError, OSError, ValueError, TimeoutError)
"""What the library raises; it lets some errors of gRPC through."""

PREFIX = "citewire_"
CURRENT, BUILDING, RETIRED = f"{PREFIX}current", f"{PREFIX}building", f"{PREFIX}retired_"
"""Aliases: of the collection that answers, of the one that is being filled, and, with the time, of those before."""
RETIRED_SECONDS = 3600
"""A collection that was replaced is dropped after this time; until then who has the former model answers from it."""

SEARCH_SECONDS, WRITE_SECONDS, SCAN_SECONDS = 10.0, 60.0, 300.0
FOLLOW_SECONDS = 2.0
"""How long a search may go on in a collection that was replaced meanwhile; writes look each time."""
ADD_BATCH = 500
PAGE = 16_384
"""The most rows that a server returns at once."""
MAX_WORDS_BYTES = 65_000
BM25_K1, BM25_B = 1.2, 0.75
HNSW_M, HNSW_BUILD, HNSW_SEARCH = 16, 200, 128

_PLAIN = re.compile(r"(?!zz)[a-z0-9]+")


def encode_words(words: str) -> str:
    """Analysed words as words of a-z and 0-9, which the server's ``standard`` analyzer leaves as they are.

    Any other one becomes ``zz`` and the hexadecimal of its UTF-8; no two words become the same. What is beyond the
    65,000 bytes that a field holds is left out.
    """
    coded = " ".join(word if _PLAIN.fullmatch(word) else f"zz{word.encode().hex()}" for word in words.split())
    return coded if len(coded) <= MAX_WORDS_BYTES else coded[:MAX_WORDS_BYTES].rpartition(" ")[0]


def collection_stem(dimensions: int, embedder: str) -> str:
    """How the names of all collections of this embedding model begin."""
    readable = re.sub(r"[^A-Za-z0-9]+", "_", embedder)[:60]
    return f"{PREFIX}{dimensions}_{readable}_{hashlib.sha256(embedder.encode()).hexdigest()[:12]}_"


class MilvusServer:
    """A connection, and the collections and aliases that are ours. Raises ``FAILURES``."""

    def __init__(self, client: AsyncMilvusClient) -> None:
        self.client = client

    async def aliases(self) -> dict[str, str]:
        """The collection of each of our aliases."""
        found: dict[str, str] = {}
        for name in await self.collections():
            listed: Any = await self.client.list_aliases(name, timeout=WRITE_SECONDS)
            found.update(dict.fromkeys(listed["aliases"] if isinstance(listed, dict) else listed, name))
        return found

    async def collections(self) -> list[str]:
        """The names of ours."""
        listed = await self.client.list_collections(timeout=WRITE_SECONDS)
        return [name for name in listed if name.startswith(PREFIX)]

    async def current(self) -> str:
        """The collection that answers."""
        described: Any = await self.client.describe_alias(CURRENT, timeout=WRITE_SECONDS)
        return str(described["collection_name"])

    async def make(self, stem: str, dimensions: int, alias: str) -> str:
        """A new, empty collection with that alias; the one that has it when somebody was faster."""
        name = f"{stem}{uuid4().hex}"
        await self.client.create_collection(name, schema=_schema(dimensions), consistency_level="Strong")
        await self._make_indexes(name)
        await self.client.load_collection(name, timeout=WRITE_SECONDS)
        try:
            await self.client.create_alias(name, alias, timeout=WRITE_SECONDS)
        except MilvusException:
            holder = (await self.aliases()).get(alias)
            if holder is None:
                raise
            await self.client.drop_collection(name, timeout=WRITE_SECONDS)
            return holder
        return name

    async def _make_indexes(self, name: str) -> None:
        params = self.client.prepare_index_params()
        params.add_index(
            "vector",
            index_type="HNSW",
            metric_type="COSINE",
            params={"M": HNSW_M, "efConstruction": HNSW_BUILD},
        )
        params.add_index(
            "sparse",
            index_type="SPARSE_INVERTED_INDEX",
            metric_type="BM25",
            params={"bm25_k1": BM25_K1, "bm25_b": BM25_B},
        )
        for index in params:
            one = self.client.prepare_index_params()
            one.append(index)
            try:
                await self.client.create_index(name, one, timeout=WRITE_SECONDS)
            except grpc.RpcError as error:  # the index is made; milvus-lite cannot be asked whether it is ready
                if not isinstance(error, grpc.aio.AioRpcError) or error.code() != grpc.StatusCode.UNIMPLEMENTED:
                    raise

    async def swap(self, name: str) -> None:
        """Makes ``name`` the collection that answers; twice is once."""
        held = await self.aliases()
        before = held.get(CURRENT)
        if before == name:
            return
        if before is not None:
            await self.client.create_alias(before, f"{RETIRED}{time.time_ns()}", timeout=WRITE_SECONDS)
            await self.client.alter_alias(name, CURRENT, timeout=WRITE_SECONDS)
        else:
            await self.client.create_alias(name, CURRENT, timeout=WRITE_SECONDS)
        if held.get(BUILDING) == name:
            await self.client.drop_alias(BUILDING, timeout=WRITE_SECONDS)

    async def drop_retired(self) -> None:
        """Drops what was replaced ``RETIRED_SECONDS`` ago."""
        held = await self.aliases()
        oldest = time.time_ns() - RETIRED_SECONDS * 1_000_000_000
        for name in set(held.values()) - {held.get(CURRENT), held.get(BUILDING)}:
            own = [alias for alias, collection in held.items() if collection == name]
            if all(int(alias.removeprefix(RETIRED)) < oldest for alias in own if alias.startswith(RETIRED)):
                for alias in own:
                    await self.client.drop_alias(alias, timeout=WRITE_SECONDS)
                await self.client.drop_collection(name, timeout=WRITE_SECONDS)


def _schema(dimensions: int) -> Any:
    schema = AsyncMilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("chunk_id", DataType.VARCHAR, is_primary=True, max_length=36)
    schema.add_field("version_id", DataType.VARCHAR, max_length=36)
    schema.add_field("owner_id", DataType.VARCHAR, max_length=36)
    schema.add_field("shared", DataType.BOOL)
    analyzer = {"tokenizer": "standard"}
    schema.add_field("words", DataType.VARCHAR, max_length=65_535, enable_analyzer=True, analyzer_params=analyzer)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimensions)
    schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
    schema.add_function(
        Function(
            name="bm25",
            input_field_names=["words"],
            output_field_names=["sparse"],
            function_type=FunctionType.BM25,
        )
    )
    return schema


class MilvusChunkIndex:
    """Both arms are asked at once and fused here, as every adapter does: the server's own fusion does not tell the
    rank in each arm, which is in the trace.

    A handle follows the alias, except one that is ``pinned``. When a rebuild with another embedding model was
    published the handle goes on answering from its collection and refuses writes.
    """

    def __init__(self, server: MilvusServer, name: str, stem: str, dimensions: int, *, pinned: bool = False) -> None:
        self._server = server
        self._name = name
        self._stem = stem
        self._dimensions = dimensions
        self._pinned = pinned
        self._replaced: str | None = None
        self._looked = time.monotonic()

    @classmethod
    async def open(cls, url: str, token: str = "", *, dimensions: int, embedder: str) -> Self:
        """Opens or makes the index on the server at ``url`` (``http://host:19530/database``).

        Raises ``ValueError`` when it was made with another embedding model, :class:`StorageUnavailable` when
        the server does not do its part.
        """
        stem = collection_stem(dimensions, embedder)
        server = await connect(url, token)
        async with _closing_on_failure(server), bounded(WRITE_SECONDS):
            held = (await server.aliases()).get(CURRENT)
            name = held or await server.make(stem, dimensions, CURRENT)
        if not name.startswith(stem):
            await server.client.close()
            raise ValueError(
                f"EMBEDDING_MODEL: the index {name} was not made with {embedder!r} of {dimensions} dimensions;"
                " run `citewire reindex` to make it anew with this one, or set the former model"
            )
        return cls(server, name, stem, dimensions)

    # --- which collection -------------------------------------------------------------------------------------------

    async def _follow(self) -> bool:
        """Goes over to the collection that answers now; whether that was another one. Raises ``FAILURES``."""
        self._looked = time.monotonic()
        if self._pinned:
            return False
        name = await self._server.current()
        if name in {self._name, self._replaced}:
            return False
        if not name.startswith(self._stem):
            logger.error("the index was rebuilt with another embedding model: restart with that EMBEDDING_MODEL")
            self._replaced = name
            return False
        self._name, self._replaced = name, None
        return True

    async def _follow_now_and_then(self) -> None:
        if time.monotonic() - self._looked < FOLLOW_SECONDS:
            return
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                await self._follow()
        except FAILURES as error:  # the collection at hand may still answer
            logger.warning("the alias of the index could not be read", exc_info=error)

    async def generation(self) -> str:
        async with bounded(WRITE_SECONDS):
            await self._follow()
            return self._replaced or self._name

    # --- writing ----------------------------------------------------------------------------------------------------

    async def add(self, rows: Sequence[IndexRow]) -> None:
        for start in range(0, len(rows), ADD_BATCH):
            batch = await asyncio.to_thread(_records, rows[start : start + ADD_BATCH])
            async with bounded(WRITE_SECONDS):
                await self._follow()
                if self._replaced is not None:
                    raise StorageUnavailable()
                await self._server.client.upsert(self._name, batch, timeout=WRITE_SECONDS)

    async def delete_version(self, version_id: UUID) -> None:
        only = f'version_id == "{UUID(str(version_id))}"'
        async with bounded(WRITE_SECONDS):
            await self._follow()
            for name in filter(None, (self._name, self._replaced)):
                await self._server.client.delete(name, filter=only, timeout=WRITE_SECONDS)

    # --- reading ----------------------------------------------------------------------------------------------------

    async def search(
        self,
        query_vector: Sequence[float] | None,
        query_words: str,
        *,
        limit: int,
        user_id: UUID,
        versions: Collection[UUID] | None = None,
    ) -> IndexHits:
        await self._follow_now_and_then()
        # The only values in the filter are UUIDs that are rendered here; nothing a user wrote can get into it.
        allowed = f'(shared == true or owner_id == "{UUID(str(user_id))}")'
        if versions is not None:
            allowed += f" and version_id in [{_listed(versions)}]"
        depth = min(max(limit, ARM_DEPTH), PAGE)
        asked: dict[Arm, Awaitable[ArmHits]] = {}
        if query_vector is not None:
            asked["dense"] = self._dense(list(query_vector), allowed, depth)
        if query_words:
            asked["sparse"] = self._sparse(query_words, allowed, depth)
        return await ask(asked, FAILURES, limit)

    async def _dense(self, vector: list[float], allowed: str, depth: int) -> ArmHits:
        if len(vector) != self._dimensions:
            raise ValueError("the vector has another length than those of the index")
        return await self._arm("vector", vector, allowed, depth, {"params": {"ef": max(depth, HNSW_SEARCH)}})

    async def _sparse(self, words: str, allowed: str, depth: int) -> ArmHits:
        return await self._arm("sparse", encode_words(words), allowed, depth, {})

    async def _arm(self, field: str, query: Any, allowed: str, depth: int, params: dict[str, Any]) -> ArmHits:
        async with asyncio.timeout(SEARCH_SECONDS):
            (found,) = await self._server.client.search(
                self._name,
                data=[query],
                anns_field=field,
                filter=allowed,
                limit=depth,
                output_fields=["chunk_id"],
                search_params=params,
                timeout=SEARCH_SECONDS,
            )
        return {UUID(hit["chunk_id"]): float(hit["distance"]) for hit in found}

    async def versions(self) -> dict[UUID, int]:
        async with bounded(SCAN_SECONDS):
            counts = await self._count("")
        return {UUID(version_id): count for version_id, count in counts.items()}

    async def _count(self, prefix: str) -> Counter[str]:
        """Rows of each version, of the chunks whose id begins so; where they are more than a page, in parts."""
        rows: Any = await self._server.client.query(
            self._name,
            filter=f'chunk_id >= "{prefix}" and chunk_id < "{prefix}~"',
            output_fields=["version_id"],
            limit=PAGE,
            timeout=SCAN_SECONDS,
        )
        if len(rows) < PAGE:
            return Counter(row["version_id"] for row in rows)
        total: Counter[str] = Counter()
        for digit in "0123456789abcdef-":
            total.update(await self._count(prefix + digit))
        return total

    async def missing(self, chunk_ids: Collection[UUID]) -> set[UUID]:
        if not chunk_ids:
            return set()
        async with bounded(SCAN_SECONDS):
            rows: Any = await self._server.client.query(
                self._name,
                filter=f"chunk_id in [{_listed(chunk_ids)}]",
                output_fields=["chunk_id"],
                timeout=SCAN_SECONDS,
            )
        return set(chunk_ids) - {UUID(row["chunk_id"]) for row in rows}

    # --- upkeep -----------------------------------------------------------------------------------------------------

    async def optimize(self) -> None:
        """The server folds and compacts by itself; what was replaced is dropped here."""
        try:
            await self._server.drop_retired()
        except FAILURES as error:
            logger.warning("what was replaced could not be dropped", exc_info=error)

    async def aclose(self) -> None:
        await self._server.client.close()


class MilvusRebuild:
    """A rebuild of the index of a server: a collection of its own, known by an alias to every process."""

    def __init__(self, server: MilvusServer, index: MilvusChunkIndex, name: str) -> None:
        self.index = index
        self._server = server
        self._name = name

    @classmethod
    async def open(cls, url: str, token: str = "", *, dimensions: int, embedder: str) -> Self:
        """Begins a rebuild, or takes up the one that was left there with the same embedding model.

        Raises :class:`StorageUnavailable`.
        """
        stem = collection_stem(dimensions, embedder)
        server = await connect(url, token)
        async with _closing_on_failure(server), bounded(WRITE_SECONDS):
            left = (await server.aliases()).get(BUILDING)
            if left is not None and not left.startswith(stem):
                await server.client.drop_alias(BUILDING, timeout=WRITE_SECONDS)
                await server.client.drop_collection(left, timeout=WRITE_SECONDS)
                left = None
            name = left or await server.make(stem, dimensions, BUILDING)
        return cls(server, MilvusChunkIndex(server, name, stem, dimensions, pinned=True), name)

    async def publish(self) -> None:
        async with bounded(WRITE_SECONDS):
            await self._server.swap(self._name)

    async def aclose(self) -> None:
        await self.index.aclose()


async def connect(url: str, token: str) -> MilvusServer:
    """A connection of its own. Raises :class:`StorageUnavailable`."""
    try:
        client = AsyncMilvusClient(url, token=token, dedicated=True, timeout=SEARCH_SECONDS)
    except MilvusException as error:
        raise StorageUnavailable(retry_after=1) from error
    return MilvusServer(client)


@contextlib.asynccontextmanager
async def bounded(seconds: float) -> AsyncGenerator[None]:
    """Ends the block within that time, with :class:`StorageUnavailable` for what the library raises."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except FAILURES as error:
        raise StorageUnavailable(retry_after=1) from error


@contextlib.asynccontextmanager
async def _closing_on_failure(server: MilvusServer) -> AsyncGenerator[None]:
    try:
        yield
    except BaseException:
        await server.client.close()
        raise


def _listed(ids: Collection[UUID]) -> str:
    """``ids`` as a list in a filter."""
    return ", ".join(f'"{UUID(str(one))}"' for one in ids) or '""'


def _records(rows: Sequence[IndexRow]) -> list[dict[str, Any]]:
    unique = {row.chunk_id: row for row in rows}.values()
    return [
        {
            "chunk_id": str(row.chunk_id),
            "version_id": str(row.version_id),
            "owner_id": str(row.owner_id or NOBODY),
            "shared": row.shared,
            "words": encode_words(row.words),
            "vector": list(row.vector),
        }
        for row in unique
    ]
