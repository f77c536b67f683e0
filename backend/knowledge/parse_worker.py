"""Reads one file and prints its pages: the program that ``parse.py`` runs, and may kill, as a process of its own.

Input is one line of JSON on stdin ``{path, type, max_pages, max_cells, max_inflated_bytes, memory_bytes,
cpu_seconds}``, output one JSON object on stdout: ``{"pages": [{"number", "text"}], "total_pages",
"replaced"}`` or ``{"code", "total_pages"}``. When stdin ends the process does too, so it never outlives the one
that started it.
"""

import json
import os
import re
import resource
import sys
import threading
from pathlib import Path
from typing import Any

from backend.knowledge.reading.archive import OLE_MAGIC, ZIP_MAGICS, check_archive
from backend.knowledge.reading.base import Content, Limits, Part, Refused
from backend.knowledge.reading.encoding import decode
from backend.knowledge.reading.library import markdown_of_file, markdown_of_html, read_pdf
from backend.knowledge.reading.plain import csv_text, declared_charset, json_text
from backend.knowledge.reading.slides import read_slides
from backend.knowledge.reading.word import complete

PDF_MAGIC = b"%PDF-"
BINARY_MAGICS = (
    *(PDF_MAGIC, *ZIP_MAGICS, OLE_MAGIC),
    *(b"\x89PNG", b"GIF8", b"\xff\xd8\xff", b"\x7fELF", b"\x1f\x8b", b"BZh", b"7z\xbc\xaf", b"Rar!\x1a"),
    *(b"{\\rtf", b"SQLite format 3\x00", b"PAR1"),
)
HEAD_BYTES = 1024
MARKS = b"\xef\xbb\xbf\xff\xfe"
"""What byte order marks are made of."""
CELL_TEXT = re.compile(r"^\|.*[^|\s-]", re.MULTILINE)
BLANK = b"\x00 \t\r\n\f\v"


def read_text(path: Path, kind: str, limits: Limits) -> Content:
    """A text file of that ``kind`` (text, html, csv, json)."""
    data = path.read_bytes()
    if data.startswith(BINARY_MAGICS):
        raise Refused("type_mismatch")
    if not data.strip(BLANK):
        raise Refused("empty_document")
    text = decode(data, declared_charset(data) if kind == "html" else None)
    if not text.strip("\ufeff" + BLANK.decode()):
        raise Refused("empty_document")
    replaced = text.count("\ufffd")
    match kind:
        case "html":
            text = markdown_of_html(text)
        case "csv":
            text = csv_text(text, limits)
        case "json":
            text = json_text(text.removeprefix("\ufeff"), limits)
        case _:
            pass
    return Content([Part(None, text)], replaced=replaced)


def read(path: Path, kind: str, limits: Limits) -> Content:
    """The text of the file, or :class:`Refused`."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES and not head.strip(BLANK + MARKS):
        raise Refused("empty_document")
    if kind == "pdf":
        if PDF_MAGIC not in head:
            raise Refused("type_mismatch" if head.strip() else "empty_document")
        return read_pdf(path, limits)
    if kind in {"text", "html", "csv", "json"}:
        return read_text(path, kind, limits)
    check_archive(path, kind, limits)
    if kind == "pptx":
        return read_slides(path)
    text = markdown_of_file(path, kind)
    if kind == "xlsx" and not CELL_TEXT.search(text):  # names of sheets are no content
        raise Refused("empty_document")
    return Content([Part(None, complete(path, text) if kind == "docx" else text)])


def limit(memory_bytes: int, cpu_seconds: int) -> None:
    """Limits of this process, as far as the platform has them."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    if sys.platform == "linux":  # macOS accepts the call and ignores or refuses the value
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def end_with_parent() -> None:
    """Ends the process as soon as stdin does."""
    while os.read(0, 4096):
        pass
    os._exit(1)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request, as it is printed."""
    limits = Limits(request["max_pages"], request["max_cells"], request["max_inflated_bytes"])
    try:
        content = read(Path(request["path"]), request["type"], limits)
    except Refused as refused:
        return {"code": refused.code, "total_pages": refused.total_pages}
    except MemoryError:
        return {"code": "too_large"}
    pages = [{"number": part.number, "text": part.text} for part in content.parts]
    return {"pages": pages, "total_pages": content.total_pages, "replaced": content.replaced}


def main() -> None:
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get into the answer
    limit(request["memory_bytes"], request["cpu_seconds"])
    threading.Thread(target=end_with_parent, daemon=True).start()
    payload = json.dumps(answer(request)).encode()
    if len(payload) > request["max_inflated_bytes"]:
        payload = b'{"code": "too_large"}'
    output.write(payload)
    output.close()
    os._exit(0)  # the library's threads have nothing left to do
