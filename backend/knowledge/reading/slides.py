"""Slides with their numbers, from the XML of a PPTX: the library gives neither numbers nor speaker's notes."""

import posixpath
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from backend.knowledge.reading.archive import opened, xml_of
from backend.knowledge.reading.base import Content, Part
from backend.knowledge.reading.markdown import markdown_table

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
_TEXT = {f"{_A}t", f"{_A}br"}
_TITLES = {"title", "ctrTitle"}
_NO_CONTENT = {"sldNum", "dt", "ftr", "hdr", "sldImg"}


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
        for item in xml_of(archive, relations)
        if item.get("TargetMode") != "External"
    }


def _slides(archive: zipfile.ZipFile) -> list[str]:
    relations = _relations(archive, "ppt/presentation.xml")
    ids = [item.get(f"{_R}id", "") for item in xml_of(archive, "ppt/presentation.xml").iter(f"{_P}sldId")]
    names = [relations[item][1] for item in ids if item in relations]
    known = set(archive.namelist())
    return [name for name in names if name in known]


def _slide_text(archive: zipfile.ZipFile, name: str) -> str:
    blocks = list(_shapes(xml_of(archive, name)))
    for kind, target in _relations(archive, name).values():
        if kind == "notesSlide" and target in archive.namelist():
            blocks += _shapes(xml_of(archive, target))
        elif kind in {"chart", "diagramData"} and target in archive.namelist():
            blocks.append("\n".join(_paragraphs(xml_of(archive, target))))
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
