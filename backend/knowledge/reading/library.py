"""Files that kreuzberg reads, each told what it is: the library believes the type that it is given."""

import html
import re
from pathlib import Path

from kreuzberg import (
    ExtractionConfig,
    ExtractionResult,
    KreuzbergError,
    PageConfig,
    extract_bytes_sync,
    extract_file_sync,
)

from backend.knowledge.reading.base import Content, Limits, Part, Refused
from backend.knowledge.reading.markdown import tidy

_OFFICE = "application/vnd.openxmlformats-officedocument"
_MIME = {
    "docx": f"{_OFFICE}.wordprocessingml.document",
    "xlsx": f"{_OFFICE}.spreadsheetml.sheet",
    "epub": "application/epub+zip",
}
_CONFIG = ExtractionConfig(
    use_cache=False,
    disable_ocr=True,  # pyright: ignore[reportCallIssue]  # missing in the library's stub
    output_format="markdown",
)
_PAGED = ExtractionConfig(
    pages=PageConfig(extract_pages=True),
    use_cache=False,
    disable_ocr=True,  # pyright: ignore[reportCallIssue]  # missing in the library's stub
    output_format="markdown",
)
_HEAD = re.compile(r"<head\b.*?</head\s*>|<title\b.*?</title\s*>", re.IGNORECASE | re.DOTALL)
_TITLE = re.compile(r"<title\b[^>]*>(.*?)</title\s*>", re.IGNORECASE | re.DOTALL)
_CERTIFICATE_HANDLER = re.compile(rb"/Filter\s*/Adobe\.(?:PubSec|PPKLite)|/SubFilter\s*/adbe\.pkcs7\.s[345]\b")
_FIRST_HEADING = re.compile(r"^# ", re.MULTILINE)


def read_pdf(path: Path, limits: Limits) -> Content:
    """The pages that have text; a scan has none (``no_extractable_text``)."""
    try:
        result = extract_file_sync(str(path), mime_type="application/pdf", config=_PAGED)
    except KreuzbergError as error:
        # The library tells an encrypted file from a broken one in its text only.
        text = str(error).lower()
        encrypted = "password" in text or "encrypt" in text or _for_a_certificate(path)
        raise Refused("encrypted_document" if encrypted else "parse_failed") from error
    pages = list(result.pages or [])
    if len(pages) > limits.max_pages:
        raise Refused("too_large")
    parts = [Part(page["page_number"], page["content"]) for page in pages if page["content"].strip()]
    if not parts:
        if _for_a_certificate(path):
            raise Refused("encrypted_document")
        raise Refused("no_extractable_text", len(pages))
    return Content(parts, len(pages))


def _for_a_certificate(path: Path) -> bool:
    """Whether a PDF is encrypted for the owners of certificates: its encryption dictionary, which is never encrypted or
    packed itself, names this handler. The library reads such a file as one of blank pages, or as a broken one."""
    content = path.read_bytes()
    return b"/Encrypt" in content and _CERTIFICATE_HANDLER.search(content) is not None


def markdown_of_file(path: Path, kind: str) -> str:
    """The text of a docx, xlsx or epub file as Markdown."""
    try:
        return _text(extract_file_sync(str(path), mime_type=_MIME[kind], config=_CONFIG))
    except KreuzbergError as error:
        raise Refused("parse_failed") from error


def markdown_of_html(page: str) -> str:
    """The text of a web page as Markdown; its title becomes the heading if it has none of the first level."""
    title = _TITLE.search(page)
    # Without the head: the library would write it as a block that looks like a heading.
    body = _HEAD.sub("", page)
    try:
        text = _text(extract_bytes_sync(body.encode(), "text/html", config=_CONFIG))
    except KreuzbergError as error:
        raise Refused("parse_failed") from error
    name = " ".join(html.unescape(title[1]).split()) if title else ""
    return f"# {name}\n\n{text}" if name and text.strip() and not _FIRST_HEADING.search(text) else text


def _text(result: ExtractionResult) -> str:
    return tidy(result.content).strip()
