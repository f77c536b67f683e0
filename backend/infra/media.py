"""What a file is, by its first bytes; the name only tells kinds of text and of archives apart."""

import codecs
import re

HEAD_BYTES = 4096
UNKNOWN = "application/octet-stream"
TEXT = "text/plain"

IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_MAGICS = {
    **IMAGES,
    b"%PDF-": "application/pdf",
    b"\x1f\x8b": "application/gzip",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "application/x-ole-storage",
}
_ARCHIVES = {
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "epub": "application/epub+zip",
}
_TEXTS = {
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "md": "text/markdown",
    "markdown": "text/markdown",
    "json": "application/json",
    "html": "text/html",
    "htm": "text/html",
}
_SERVED = frozenset({TEXT, "text/csv", "text/markdown", "application/json", "application/pdf", *IMAGES.values()}) | {
    "image/webp",
    *_ARCHIVES.values(),
}
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_SVG = re.compile(r"<svg[\s>]", re.IGNORECASE)
_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def media_type_of(head: bytes, name: str) -> str:
    """The media type of a file that begins with ``head`` (``HEAD_BYTES`` of it, or all)."""
    extension = name.rpartition(".")[2].lower()
    for magic, kind in _MAGICS.items():
        if head.startswith(magic):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head.startswith(b"PK\x03\x04"):
        return _ARCHIVES.get(extension, "application/zip")
    text = _text(head)
    if text is None:
        return UNKNOWN
    return "image/svg+xml" if _SVG.search(text) else _TEXTS.get(extension, TEXT)


def served_type(media_type: str) -> str:
    """The type to name in an answer: none that a browser would run as a page."""
    if media_type.startswith("text/") and media_type not in _SERVED:
        media_type = TEXT
    if media_type not in _SERVED:
        return UNKNOWN
    return f"{media_type}; charset=utf-8" if media_type.startswith("text/") else media_type


def _text(head: bytes) -> str | None:
    """``head`` as text; ``None`` when it is none in any usual encoding."""
    if head.startswith(_BOMS):
        return head.decode("utf-16", "replace")
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        text = head.decode("latin-1")
    return None if _CONTROL.search(text) else text
