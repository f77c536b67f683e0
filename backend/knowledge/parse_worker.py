"""Reads one file and prints its pages: the program that ``parse.py`` runs, and may kill, as a process of its own.

Input is one line of JSON on stdin ``{path, type, max_pages, max_output_bytes, memory_bytes, cpu_seconds}``, output one
JSON object on stdout: ``{"pages": [{"number", "text"}], "total_pages"}`` or ``{"code"}``. When stdin ends the process
does too, so it never outlives the one that started it. It imports nothing of the product: it runs by its path.
"""

import contextlib
import json
import os
import re
import resource
import sys
import threading
from pathlib import Path
from typing import Any

from charset_normalizer import from_bytes
from kreuzberg import ExtractionConfig, KreuzbergError, PageConfig, extract_file_sync

PDF_MAGIC = b"%PDF-"
BINARY_MAGICS = (
    PDF_MAGIC,
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"\x89PNG",
    b"GIF8",
    b"\xff\xd8\xff",
    b"\xd0\xcf\x11\xe0",
    b"\x7fELF",
    b"\x1f\x8b",
    b"BZh",
    b"7z\xbc\xaf",
    b"{\\rtf",
    b"SQLite format 3\x00",
)
BOMS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
ENCODINGS = [
    *("gb18030", "big5", "big5hkscs", "cp932", "euc_jp", "cp949"),
    *("cp1252", "cp1251", "koi8_r", "cp1250", "utf_16_le", "utf_16_be"),
]
"""The ones that are tried; of those that fit equally well the first is taken."""
SAMPLE_BYTES = 256 * 1024
BAD = re.compile("[\x01-\x08\x0b\x0e-\x1f\x7f-\x9f\ufffd]")
MAX_BAD_SHARE = 0.01
"""More replaced or control characters than this: the encoding was not understood (H05)."""


class Refused(Exception):
    """The file cannot be used; the argument is the error code."""


def read_pdf(path: Path, max_pages: int) -> dict[str, Any]:
    config = ExtractionConfig(
        pages=PageConfig(extract_pages=True),
        use_cache=False,
        disable_ocr=True,  # pyright: ignore[reportCallIssue]  # missing in the library's stub
        output_format="markdown",
    )
    try:
        result = extract_file_sync(str(path), mime_type="application/pdf", config=config)
    except KreuzbergError as error:
        # The library tells an encrypted file from a broken one in its text only.
        encrypted = "password" in str(error).lower() or "encrypt" in str(error).lower()
        raise Refused("encrypted_document" if encrypted else "parse_failed") from error
    pages = list(result.pages or [])
    if len(pages) > max_pages:
        raise Refused("too_large")
    texts = [{"number": page["page_number"], "text": page["content"]} for page in pages if page["content"].strip()]
    if not texts:
        raise Refused("no_extractable_text")
    return {"pages": texts, "total_pages": len(pages)}


def is_readable(text: str) -> bool:
    """Whether at most 1 % of ``text`` are replacement or control characters."""
    return sum(1 for _ in BAD.finditer(text)) <= MAX_BAD_SHARE * len(text)


def detect(data: bytes) -> str | None:
    """The encoding of ``data``, which is not valid UTF-8, or ``None``."""
    matches = list(from_bytes(data[:SAMPLE_BYTES], cp_isolation=ENCODINGS))
    if not matches:
        return None
    best = (matches[0].chaos, matches[0].coherence)
    equal = [match.encoding for match in matches if (match.chaos, match.coherence) == best]
    return min(equal, key=ENCODINGS.index)


def decode(data: bytes) -> str:
    """The text of ``data``: by byte order mark, as UTF-8, or in the encoding that fits best."""
    for bom, encoding in BOMS:
        if data.startswith(bom):
            return data[len(bom) :].decode(encoding, "replace")
    if data.count(0) > len(data) / 5:  # UTF-16 without a mark: every other byte of Latin text is zero
        return data.decode("utf-16-be" if data[::2].count(0) > data[1::2].count(0) else "utf-16-le", "replace")
    with contextlib.suppress(UnicodeDecodeError):
        return data.decode("utf-8")
    text = data.decode("utf-8", "replace")
    if is_readable(text):  # UTF-8 with a few broken bytes
        return text
    encoding = detect(data)
    if encoding is None:
        raise Refused("encoding_unknown")
    return data.decode(encoding, "replace")


def read_text(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    if not data.strip(b"\x00 \t\r\n\f\v"):
        raise Refused("empty_document")
    text = decode(data)
    if not is_readable(text):
        raise Refused("encoding_unknown")
    if not text.strip("\ufeff\x00 \t\r\n\f\v"):
        raise Refused("empty_document")
    return {"pages": [{"number": None, "text": text}], "total_pages": None}


def read(request: dict[str, Any]) -> dict[str, Any]:
    """The pages of the file, or :class:`Refused`."""
    path = Path(request["path"])
    with path.open("rb") as file:
        head = file.read(1024)
    if not head:
        raise Refused("empty_document")
    if request["type"] == "pdf":
        if PDF_MAGIC not in head:
            raise Refused("type_mismatch" if head.strip() else "empty_document")
        return read_pdf(path, request["max_pages"])
    if head.startswith(BINARY_MAGICS):
        raise Refused("type_mismatch")
    return read_text(path)


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


def main() -> None:
    request: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not get into the answer
    limit(request["memory_bytes"], request["cpu_seconds"])
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        answer = read(request)
    except Refused as refused:
        answer = {"code": refused.args[0]}
    except MemoryError:
        answer = {"code": "too_large"}
    payload = json.dumps(answer).encode()
    if len(payload) > request["max_output_bytes"]:
        payload = b'{"code": "too_large"}'
    output.write(payload)
    output.close()
    os._exit(0)  # the library's threads have nothing left to do


if __name__ == "__main__":
    main()
