"""Zip-based files: of which kind one is and whether it unpacks to what may be read, before anything parses it (H09).

Declared sizes may lie, so every member is unpacked once, in small pieces that are thrown away; a nested archive is a
member like any other and is not entered.
"""

import re
import struct
import sys
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from backend.knowledge.reading.base import Limits, Refused

ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
OLE_MAGIC = b"\xd0\xcf\x11\xe0"
MAX_MEMBERS = 10_000
MAX_DIRECTORY_BYTES = 4 * 1024 * 1024
_END, _END_BYTES, _MAX_COMMENT = b"PK\x05\x06", 22, 65_535
_PIECE = 256 * 1024
_SLIDE = re.compile(r"ppt/slides/slide\d+\.xml")
_MAIN_PART = re.compile(rb"(wordprocessingml|spreadsheetml|presentationml)\.\w+\.main\+xml")
_KINDS = {b"wordprocessingml": "docx", b"spreadsheetml": "xlsx", b"presentationml": "pptx"}
_CELL_TAGS = {"docx": b"<w:tc>", "xlsx": b"<c ", "pptx": b"<a:tc"}
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, UnicodeDecodeError, ValueError)


@contextmanager
def opened(source: Path | IO[bytes]) -> Generator[zipfile.ZipFile]:
    """The archive at a path, or in an open file, which stays open.

    Raises :class:`Refused` when it is broken, then or while it is used, or too large.
    """
    try:
        with source.open("rb") if isinstance(source, Path) else nullcontext(source) as file:
            _check_directory(file)
        with zipfile.ZipFile(source) as archive:
            yield archive
    except BROKEN as error:
        raise Refused("parse_failed") from error


def _check_directory(file: IO[bytes]) -> None:
    """Refuses a list of members that would take long to read only."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _END_BYTES - _MAX_COMMENT - 1024))
    tail = file.read()
    position = tail.rfind(_END)
    if position < 0:
        raise Refused("parse_failed")
    members, directory_bytes = struct.unpack_from("<HL", tail, position + 10)
    zip64 = tail.rfind(b"PK\x06\x06", 0, position)
    if zip64 >= 0:
        members, directory_bytes = struct.unpack_from("<QQ", tail, zip64 + 32)
    if members > MAX_MEMBERS or directory_bytes > MAX_DIRECTORY_BYTES:
        raise Refused("too_large")


def check_archive(path: Path, kind: str, limits: Limits) -> None:
    """Refuses what is no intact archive of that ``kind`` (docx, xlsx, pptx, epub) or unpacks to more than allowed."""
    with path.open("rb") as file:
        head = file.read(8)
    if head.startswith(OLE_MAGIC):
        # A password makes of a document a container of another kind, which has a stream of this name.
        encrypted = "EncryptedPackage".encode("utf-16-le") in path.read_bytes()
        raise Refused("encrypted_document" if encrypted else "type_mismatch")
    if not head.startswith(ZIP_MAGICS):
        raise Refused("type_mismatch" if head.strip() else "empty_document")
    with opened(path) as archive:
        _check_members(archive, limits)
        if _kind_of(archive) != kind:
            raise Refused("type_mismatch")
        _check_contents(archive, kind, limits)


def _check_members(archive: zipfile.ZipFile, limits: Limits) -> None:
    members = archive.infolist()
    if any(member.flag_bits & 1 for member in members):
        raise Refused("encrypted_document")
    if len(members) > MAX_MEMBERS or sum(member.file_size for member in members) > limits.max_inflated_bytes:
        raise Refused("too_large")
    if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
        raise Refused("parse_failed")


def _kind_of(archive: zipfile.ZipFile) -> str | None:
    names = set(archive.namelist())
    if "META-INF/container.xml" in names and "mimetype" in names:
        return "epub" if archive.read("mimetype").strip() == b"application/epub+zip" else None
    if "[Content_Types].xml" not in names:
        return None
    main = _MAIN_PART.search(archive.read("[Content_Types].xml"))
    return _KINDS[main[1]] if main else None


def _check_contents(archive: zipfile.ZipFile, kind: str, limits: Limits) -> None:
    inflated = cells = 0
    if sum(1 for name in archive.namelist() if _SLIDE.fullmatch(name)) > limits.max_pages:
        raise Refused("too_large")
    for member in archive.infolist():
        tag = _CELL_TAGS.get(kind, b"<td") if member.filename.endswith("ml") else None
        for piece in pieces(archive, member):
            inflated += len(piece)
            cells += piece.count(tag) if tag else 0
            if inflated > limits.max_inflated_bytes or cells > limits.max_cells:
                raise Refused("too_large")


def pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Iterator[bytes]:
    """The member unpacked to its real end, in pieces; raises one of ``BROKEN`` when its checksum is wrong."""
    declared, member.file_size = member.file_size, sys.maxsize  # the library stops at the declared size otherwise
    try:
        with archive.open(member) as file:
            while piece := file.read(_PIECE):
                yield piece
    finally:
        member.file_size = declared


def xml_of(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    """The XML of a member. Office files have no entities of their own, so one that has is refused (H09)."""
    data = archive.read(name)
    if b"<!ENTITY" in data or b"<!\x00E\x00N\x00T\x00I" in data:
        raise Refused("parse_failed")
    try:
        return ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise Refused("parse_failed") from error
