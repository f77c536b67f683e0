"""Hybrid query over made leaves, against each arm alone in the same run; the embedding of the query is not in it.

The vectors are made (clusters of random unit vectors), and so are the words (a Zipf vocabulary): embedding 100,000 real
leaves takes two hours on two cores. Quality is measured elsewhere; this measures time.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import psutil

from backend.knowledge.index.base import IndexRow
from backend.knowledge.index.lance import LanceChunkIndex
from benchmarks.harness import figures, report

DIMENSIONS, CLUSTERS, VOCABULARY, WORDS, QUERIES, BATCH = 384, 2_000, 30_000, 90, 200, 2_000
Vector = list[float]


class Corpus:
    """Deterministic leaves and queries."""

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self._random = np.random.default_rng(7)
        self._centres = self._random.normal(size=(CLUSTERS, DIMENSIONS)).astype(np.float32)
        rank = 1.0 / np.arange(1, VOCABULARY + 1)
        self._odds = np.cumsum(rank / rank.sum())
        self.user, self._version = uuid4(), uuid4()

    def vectors(self, count: int) -> list[Vector]:
        near = self._centres[self._random.integers(0, CLUSTERS, count)]
        made = near + 0.6 * self._random.normal(size=near.shape).astype(np.float32)
        return (made / np.linalg.norm(made, axis=1, keepdims=True)).tolist()

    def words(self, count: int, length: int) -> list[str]:
        drawn = np.searchsorted(self._odds, self._random.random((count, length)))
        return [" ".join(f"w{number}" for number in row) for row in drawn]

    def batches(self) -> Iterator[list[IndexRow]]:
        """Leaves; every tenth is private to somebody else, so that the owner filter has something to do."""
        for start in range(0, self.leaves, BATCH):
            count = min(BATCH, self.leaves - start)
            rows = zip(self.vectors(count), self.words(count, WORDS), strict=True)
            yield [self._row(start + offset, words, vector) for offset, (vector, words) in enumerate(rows)]

    def _row(self, number: int, words: str, vector: Vector) -> IndexRow:
        foreign = number % 10 == 0
        return IndexRow(uuid4(), self._version, UUID(int=1) if foreign else self.user, not foreign, words, vector)


async def timed(index: LanceChunkIndex, corpus: Corpus, *, dense: bool, sparse: bool) -> list[float]:
    """Milliseconds of each query."""
    vectors, words = corpus.vectors(QUERIES + 10), corpus.words(QUERIES + 10, 6)
    times: list[float] = []
    for vector, text in zip(vectors, words, strict=True):
        start = time.perf_counter()
        await index.search(vector if dense else None, text if sparse else "", limit=24, user_id=corpus.user)
        times.append((time.perf_counter() - start) * 1000)
    return times[10:]


async def measure(leaves: int) -> dict[str, Any]:
    """Fill, build what is built in the background, ask. Memory is what this process has more than before."""
    process = psutil.Process()
    before = process.memory_info().rss
    corpus, path = Corpus(leaves), Path(tempfile.mkdtemp(prefix="citewire-bench-"))
    try:
        index = await LanceChunkIndex.open(str(path), dimensions=DIMENSIONS, embedder="made")
        start = time.perf_counter()
        for rows in corpus.batches():
            await index.add(rows)
        filled = time.perf_counter()
        await index.optimize()
        built = time.perf_counter()
        arms = {
            "hybrid": figures(await timed(index, corpus, dense=True, sparse=True), 1),
            "dense": figures(await timed(index, corpus, dense=True, sparse=False), 1),
            "bm25": figures(await timed(index, corpus, dense=False, sparse=True), 1),
        }
        memory = process.memory_info().rss - before
        await index.aclose()
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    finally:
        shutil.rmtree(path, ignore_errors=True)
    return {
        "leaves": leaves,
        "query_ms": arms,
        "fill_seconds": round(filled - start, 1),
        "build_seconds": round(built - filled, 1),
        "memory_mb": round(memory / 1e6),
        "disk_mb": round(size / 1e6),
    }


def measured_apart(leaves: int) -> dict[str, Any]:
    """As :func:`measure`, in a process of its own: memory of one size is not that of the size before."""
    command = [sys.executable, "-m", "benchmarks.retrieval", "--one", str(leaves)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main(sizes: list[int]) -> None:
    """Each size after the other; the figures of the largest are the figure."""
    found = [measured_apart(leaves) for leaves in sorted(sizes)]
    report(
        "retrieval",
        "hybrid 25 ms, median, at 100,000 leaves, without embedding the query",
        vectors="made",
        **found[-1],
        smaller=found[:-1],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leaves", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--one", type=int, help="one size, printed bare")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(asyncio.run(measure(options.one))))
    else:
        main(options.leaves)
