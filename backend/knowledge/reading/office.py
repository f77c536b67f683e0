"""What is read from the XML of office files: slides with their numbers, and what the library leaves out of a DOCX."""

import posixpath
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from backend.knowledge.reading.archive import opened
from backend.knowledge.reading.base import Content, Part, Refused
from backend.knowledge.reading.markdown import markdown_table

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_LETTERS = re.compile(r"[^\w]|_")
_WORD_PARTS = re.compile(r"word/(document|header|footer|footnotes|endnotes|comments)\d*\.xml")
_PART_ORDER = ("header", "footer", "document", "footnotes", "endnotes", "comments")
_NOT_IN_TEXT = {f"{_W}del", f"{_W}moveFrom", _FALLBACK}
"""Removed by a tracked change, or the same once more for old programs."""
_TITLES = {"title", "ctrTitle"}
_NO_CONTENT = {"sldNum", "dt", "ftr", "hdr", "sldImg"}


def _parse(archive: zipfile.ZipFile, name: str) -> Element:
    """The XML of a member. Office files have no entities of their own, so one that has is refused (H09)."""
    data = archive.read(name)
    if b"<!ENTITY" in data or b"<!\x00E\x00N\x00T\x00I" in data:
        raise Refused("parse_failed")
    try:
        return ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise Refused("parse_failed") from error


# --- DOCX: what the library leaves out ---------------------------------------------------------------------------


def docx_remainder(path: Path, markdown: str) -> tuple[str, str]:
    """Paragraphs of the DOCX that ``markdown`` lacks: those of page headers and footers, and all others.

    The others are notes, comments and some text around boxes. Text that a tracked change removed is no text.
    """
    known = _LETTERS.sub("", markdown)
    head: list[str] = []
    rest: list[str] = []
    with opened(path) as archive:
        for name in _word_parts(archive):
            found, position = head if name.startswith(("word/header", "word/footer")) else rest, 0
            for paragraph in _word_paragraphs(_parse(archive, name)):
                letters = _LETTERS.sub("", paragraph)
                at = known.find(letters, position)
                at = at if at >= 0 else known.find(letters)
                if at >= 0:
                    position = at
                elif paragraph not in found:  # each section repeats its header
                    found.append(paragraph)
    return "\n\n".join(head), "\n\n".join(rest)


def _word_parts(archive: zipfile.ZipFile) -> list[str]:
    found = [(match[1], name) for name in archive.namelist() if (match := _WORD_PARTS.fullmatch(name))]
    return [name for _, name in sorted(found, key=lambda item: _PART_ORDER.index(item[0]))]


def _word_paragraphs(root: Element) -> Iterator[str]:
    """The text of each paragraph, that of a box within it apart."""
    for paragraph in _below(root, f"{_W}p"):
        text = "".join(_word_texts(paragraph)).strip()
        if text:
            yield text


def _below(element: Element, tag: str) -> Iterator[Element]:
    for child in element:
        if child.tag in _NOT_IN_TEXT:
            continue
        if child.tag == tag:
            yield child
        yield from _below(child, tag)


def _word_texts(element: Element) -> Iterator[str]:
    for child in element:
        if child.tag in _NOT_IN_TEXT or child.tag == f"{_W}p":
            continue
        if child.tag == f"{_W}t":
            yield child.text or ""
        elif child.tag in {f"{_W}tab", f"{_W}br", f"{_W}cr"}:
            yield " "
        else:
            yield from _word_texts(child)


# --- PPTX --------------------------------------------------------------------------------------------------------


def read_slides(path: Path) -> Content:
    """A part for each slide in the order of the show: title as heading, texts, tables, then the speaker's notes."""
    with opened(path) as archive:
        slides = _slides(archive)
        parts = [Part(number, _slide_text(archive, name)) for number, name in enumerate(slides, start=1)]
    return Content([part for part in parts if part.text], total_pages=len(slides))


def _relations(archive: zipfile.ZipFile, name: str) -> dict[str, tuple[str, str]]:
    """The parts that a part points to: id to kind and name."""
    folder, file = posixpath.split(name)
    relations = f"{folder}/_rels/{file}.rels"
    if relations not in archive.namelist():
        return {}
    return {
        item.get("Id", ""): (
            item.get("Type", "").rpartition("/")[2],
            posixpath.normpath(posixpath.join("/", folder, item.get("Target", ""))).lstrip("/"),
        )
        for item in _parse(archive, relations)
        if item.get("TargetMode") != "External"
    }


def _slides(archive: zipfile.ZipFile) -> list[str]:
    relations = _relations(archive, "ppt/presentation.xml")
    ids = [item.get(f"{_R}id", "") for item in _parse(archive, "ppt/presentation.xml").iter(f"{_P}sldId")]
    names = [relations[item][1] for item in ids if item in relations]
    known = set(archive.namelist())
    return [name for name in names if name in known]


def _slide_text(archive: zipfile.ZipFile, name: str) -> str:
    blocks = list(_shapes(_parse(archive, name)))
    for kind, target in _relations(archive, name).values():
        if kind == "notesSlide" and target in archive.namelist():
            blocks += _shapes(_parse(archive, target))
        elif kind in {"chart", "diagramData"} and target in archive.namelist():
            blocks.append("\n".join(_paragraphs(_parse(archive, target))))
    return "\n\n".join(block for block in blocks if block)


def _shapes(root: Element) -> Iterator[str]:
    for shape in root.iter():
        if shape.tag == f"{_P}sp":
            yield _shape(shape)
        elif shape.tag == f"{_A}tbl":
            rows = ([" ".join(_paragraphs(cell)) for cell in row.iter(f"{_A}tc")] for row in shape.iter(f"{_A}tr"))
            yield markdown_table(rows)


def _shape(shape: Element) -> str:
    placeholder = shape.find(f"{_P}nvSpPr/{_P}nvPr/{_P}ph")
    kind = placeholder.get("type", "body") if placeholder is not None else ""
    if kind in _NO_CONTENT:
        return ""
    paragraphs = list(_paragraphs(shape))
    if kind in _TITLES:
        return f"# {' '.join(paragraphs)}" if paragraphs else ""
    return "\n\n".join(paragraphs)


def _paragraphs(element: Element) -> Iterator[str]:
    for paragraph in element.iter(f"{_A}p"):
        texts = (node.text or "" if node.tag == f"{_A}t" else " " for node in paragraph.iter() if node.tag in _TEXT)
        if text := "".join(texts).strip():
            yield text


_TEXT = {f"{_A}t", f"{_A}br"}
