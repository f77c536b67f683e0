"""The directories below ``DATA_DIR``. Paths are made of UUIDs only: no text of a user is ever part of one.

The functions block; callers on the event loop use a thread.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import IO
from uuid import UUID

DOCUMENTS, INDEX, THREADS = "documents", "index", "threads"


def make_directories(data_dir: Path) -> None:
    """Makes ``documents``, ``index`` and ``threads`` below ``data_dir``, open to their owner alone."""
    for name in (DOCUMENTS, INDEX, THREADS):
        (data_dir / name).mkdir(mode=0o700, parents=True, exist_ok=True)


def document_path(data_dir: Path, document_id: UUID, version_id: UUID) -> Path:
    """Where the original of a document's version lies."""
    return data_dir / DOCUMENTS / str(document_id) / str(version_id)


def write_atomic(path: Path, source: bytes | Path | IO[bytes]) -> None:
    """Writes ``source`` to ``path``, which is whole and on the disk or absent.

    The source is bytes, a file to copy, or an open one, from its beginning.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as target:
            if isinstance(source, bytes):
                target.write(source)
            elif isinstance(source, Path):
                with source.open("rb") as origin:
                    shutil.copyfileobj(origin, target, 1024 * 1024)
            else:
                source.seek(0)
                shutil.copyfileobj(source, target, 1024 * 1024)
            target.flush()
            os.fsync(target.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def remove_document(data_dir: Path, document_id: UUID, version_id: UUID) -> None:
    """Removes a version's file, what a killed write left of it, and the document's directory when it is empty."""
    path = document_path(data_dir, document_id, version_id)
    path.unlink(missing_ok=True)
    path.with_name(path.name + ".part").unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # not empty: another version lies there
        path.parent.rmdir()
