"""Folds a table of a LanceDB index in a process of its own, with low priority: ``lance_worker URI TABLE ANN_ROWS``.

Several servers may start one at the same time; on one host the first does the work and the others leave at once.
"""

import asyncio
import fcntl
import os
import sys
from pathlib import Path

from backend.knowledge.index.lance_tables import connect, fold

NICE = 10
LOCK = "fold.lock"


async def _fold(uri: str, name: str, ann_rows: int) -> None:
    connection = await connect(uri)
    await fold(await connection.open_table(name), ann_rows)


def main(uri: str, name: str, ann_rows: int) -> None:
    """Folds unless another process of this host does."""
    os.nice(NICE)
    directory = Path(uri)
    if not directory.is_dir():  # an object store has no locks; folding twice is waste, not damage
        asyncio.run(_fold(uri, name, ann_rows))
        return
    with (directory / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        asyncio.run(_fold(uri, name, ann_rows))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
