"""What is in an uploaded zip file: each entry unpacked by itself, under limits that count what really comes out.

The functions block; callers on the event loop use a thread.
"""

import stat
import zipfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import IO

from backend.errors import DocumentError, TooLarge, TooManyFiles, TypeMismatch
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.reading.archive import BROKEN, opened, pieces
from backend.knowledge.reading.base import Refused

MEMORY_BYTES = 1024 * 1024
"""A larger entry goes through a temporary file."""
RATIO_FROM_BYTES = 1024 * 1024
"""Below that an entry is no bomb, however well it was packed."""

_ENCRYPTED, _UTF8 = 0x1, 0x800


@dataclass(slots=True)
class Budget:
    """What may still be unpacked, in bytes; shared by the archives of one request."""

    left: int


@contextmanager
def entries_of(file: IO[bytes], max_files: int) -> Generator[tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]]:
    """The archive and its files, without directories and the notes that macOS adds.

    Raises :class:`DocumentError` (broken, nothing in it) and :class:`TooManyFiles`.
    """
    try:
        with opened(file) as archive:
            entries = [entry for entry in archive.infolist() if not _is_aside(entry)]
            if not entries:
                raise DocumentError("empty_document")
            if len(entries) > max_files:
                raise TooManyFiles()
            yield archive, entries
    except Refused as refused:
        raise (TooManyFiles() if refused.code == "too_large" else DocumentError("parse_failed")) from refused


def name_of(entry: zipfile.ZipInfo) -> str:
    """The name as it was meant: without the mark for UTF-8, archivers write it in the encoding of their system."""
    if entry.flag_bits & _UTF8 or entry.filename.isascii():
        return entry.filename
    written = entry.filename.encode("cp437")  # as which the library reads what has no mark
    for encoding in ("utf-8", "gb18030"):
        with suppress(UnicodeDecodeError):
            return written.decode(encoding)
    return entry.filename


def unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, config: KnowledgeConfig, budget: Budget) -> IO[bytes]:
    """The content of ``entry``, to be closed by the caller; what was unpacked is off the ``budget`` either way.

    Raises :class:`DocumentError` (encrypted, broken), :class:`TypeMismatch` (a link) and :class:`TooLarge`.
    """
    if entry.flag_bits & _ENCRYPTED:
        raise DocumentError("encrypted_document")
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise TypeMismatch()
    content: IO[bytes] = SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115  # the caller closes it
    try:
        _copy(archive, entry, content, config, budget)
    except BaseException:
        content.close()
        raise
    return content


def _copy(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, content: IO[bytes], config: KnowledgeConfig, budget: Budget
) -> None:
    size, packed = 0, max(1, entry.compress_size)
    try:
        for piece in pieces(archive, entry):
            size += len(piece)
            budget.left -= len(piece)
            bomb = size > RATIO_FROM_BYTES and size > packed * config.max_zip_ratio
            if bomb or size > config.max_upload_bytes or budget.left < 0:
                raise TooLarge()
            content.write(piece)
    except (*BROKEN, RuntimeError) as error:  # a RuntimeError is an encryption that the flags did not tell
        raise DocumentError("parse_failed") from error


def _is_aside(entry: zipfile.ZipInfo) -> bool:
    return entry.is_dir() or entry.filename.startswith("__MACOSX/")
