"""What the library leaves out of a DOCX: headings of styles it does not know, page headers and footers, notes."""

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from backend.knowledge.reading.archive import opened, xml_of

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_LETTERS = re.compile(r"[^\w]|_")
_WORD_PARTS = re.compile(r"word/(document|header|footer|footnotes|endnotes|comments)\d*\.xml")
_PART_ORDER = ("header", "footer", "document", "footnotes", "endnotes", "comments")
_MAX_HEADING_CHARS = 200
_LEVELS = 6


def complete(path: Path, markdown: str) -> str:
    """``markdown``, which the library made of the DOCX at ``path``, with what it lacks.

    What stands on every page comes first, as it belongs to no heading; notes, comments and text around boxes last.
    """
    with opened(path) as archive:
        text = _with_headings(markdown, _headings(archive))
        head, rest = _remainder(archive, markdown)
    return "\n\n".join(block for block in (head, text, rest) if block.strip())


# --- headings ----------------------------------------------------------------------------------------------------


def _headings(archive: zipfile.ZipFile) -> dict[str, int]:
    """The letters of each paragraph that has an outline level, itself or by its style, with that level (from 1)."""
    styles = _style_levels(archive)
    found: dict[str, int] = {}
    for name in _word_parts(archive):
        if name.startswith("word/document"):
            for paragraph in xml_of(archive, name).iter(f"{_W}p"):
                level = _level(paragraph) or styles.get(_value(paragraph, "pPr/pStyle") or "")
                text = "".join(_word_texts(paragraph))
                if level and len(text) <= _MAX_HEADING_CHARS and (letters := _LETTERS.sub("", text)):
                    found.setdefault(letters, level)
    return found


def _value(element: Element, path: str) -> str | None:
    found = element.find("/".join(_W + step for step in path.split("/")))
    return None if found is None else found.get(f"{_W}val")


def _level(element: Element) -> int | None:
    value = _value(element, "pPr/outlineLvl") or ""
    return int(value) + 1 if value.isdecimal() and int(value) < _LEVELS else None


def _style_levels(archive: zipfile.ZipFile) -> dict[str, int]:
    if "word/styles.xml" not in archive.namelist():
        return {}
    levels: dict[str, int] = {}
    based: dict[str, str] = {}
    for style in xml_of(archive, "word/styles.xml").iter(f"{_W}style"):
        name = style.get(f"{_W}styleId", "")
        if level := _level(style):
            levels[name] = level
        elif base := _value(style, "basedOn"):
            based[name] = base
    for _ in range(10):  # styles are based on styles
        levels |= {name: levels[base] for name, base in based.items() if base in levels and name not in levels}
    return levels


def _with_headings(markdown: str, headings: dict[str, int]) -> str:
    lines = markdown.split("\n")
    for position, line in enumerate(lines):
        if line and len(line) <= 2 * _MAX_HEADING_CHARS and not line.startswith(("#", "|")):
            level = headings.get(_LETTERS.sub("", line))
            lines[position] = f"{'#' * level} {line}" if level else line
    return "\n".join(lines)


# --- what is missing ---------------------------------------------------------------------------------------------


def _remainder(archive: zipfile.ZipFile, markdown: str) -> tuple[str, str]:
    """Paragraphs of the DOCX that ``markdown`` lacks: those of page headers and footers, and all others.

    The others are notes, comments and some text around boxes. What a tracked change removed is no text
    (its elements have another name), and what a document holds twice, for old programs too, is given once.
    """
    known = _LETTERS.sub("", markdown)
    head: list[str] = []
    rest: list[str] = []
    for name in _word_parts(archive):
        found, position = head if name.startswith(("word/header", "word/footer")) else rest, 0
        for paragraph in _word_paragraphs(xml_of(archive, name)):
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
    for paragraph in root.iter(f"{_W}p"):
        text = "".join(_word_texts(paragraph)).strip()
        if text:
            yield text


def _word_texts(element: Element) -> Iterator[str]:
    for child in element:
        if child.tag == f"{_W}p":
            continue
        if child.tag == f"{_W}t":
            yield child.text or ""
        elif child.tag in {f"{_W}tab", f"{_W}br", f"{_W}cr"}:
            yield " "
        else:
            yield from _word_texts(child)
