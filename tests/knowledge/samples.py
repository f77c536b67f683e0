"""One small file of each type, made as the usual programs make them."""

import io
import zipfile
from collections.abc import Callable, Sequence

from docx import Document
from docx.document import Document as WordDocument
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls
from docx.table import Table
from ebooklib import epub
from openpyxl import Workbook
from pptx import Presentation
from pptx.presentation import Presentation as Show
from pptx.util import Cm

Rows = Sequence[Sequence[object]]

TEXT_BOX = """<w:r {w} xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"
  xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape"
  xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing"
  xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:v="urn:schemas-microsoft-com:vml">
  <mc:AlternateContent><mc:Choice Requires="wps"><w:drawing><wp:inline><a:graphic><a:graphicData uri="x"><wps:wsp>
  <wps:txbx><w:txbxContent><w:p><w:r><w:t>{text}</w:t></w:r></w:p></w:txbxContent></wps:txbx></wps:wsp></a:graphicData>
  </a:graphic></wp:inline></w:drawing></mc:Choice><mc:Fallback><w:pict><v:shape><v:textbox><w:txbxContent><w:p><w:r>
  <w:t>{text}</w:t></w:r></w:p></w:txbxContent></v:textbox></v:shape></w:pict></mc:Fallback></mc:AlternateContent></w:r>"""
CHANGES = """<w:ins {w} w:id="1" w:author="a"><w:r><w:t xml:space="preserve">{inserted}</w:t></w:r></w:ins>
<w:del {w} w:id="2" w:author="a"><w:r><w:delText>{deleted}</w:delText></w:r></w:del>"""


def saved(thing: WordDocument | Workbook | Show) -> bytes:
    target = io.BytesIO()
    thing.save(target)
    return target.getvalue()


def word_table(document: WordDocument, rows: Rows) -> Table:
    table = document.add_table(len(rows), len(rows[0]))
    for row, values in zip(table.rows, rows, strict=True):
        for cell, value in zip(row.cells, values, strict=True):
            cell.text = str(value)
    return table


def docx(build: Callable[[WordDocument], object]) -> bytes:
    document = Document()
    build(document)
    return saved(document)


def add_box(document: WordDocument, text: str, box: str) -> None:
    paragraph = document.add_paragraph(text)
    paragraph._p.append(parse_xml(TEXT_BOX.format(w=nsdecls("w"), text=box)))


def add_changes(document: WordDocument, text: str, inserted: str, deleted: str) -> None:
    paragraph = document.add_paragraph(text)
    for change in CHANGES.format(w=nsdecls("w"), inserted=inserted, deleted=deleted).split("\n"):
        paragraph._p.append(parse_xml(change))


def xlsx(sheets: dict[str, Rows]) -> bytes:
    book = Workbook()
    book.remove(book.worksheets[0])
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    return saved(book)


def pptx(slides: Sequence[tuple[str, str, Rows | None, str]]) -> bytes:
    """A slide for each title, body, table and speaker's notes."""
    show = Presentation()
    for title, body, rows, notes in slides:
        slide = show.slides.add_slide(show.slide_layouts[1 if body else 5 if title else 6])
        if title:
            slide.shapes.title.text = title
        if body:
            slide.placeholders[1].text = body
        if rows:
            table = slide.shapes.add_table(len(rows), len(rows[0]), Cm(1), Cm(5), Cm(20), Cm(5)).table
            for line, values in enumerate(rows):
                for column, value in enumerate(values):
                    table.cell(line, column).text = str(value)
        if notes:
            slide.notes_slide.notes_text_frame.text = notes
    return saved(show)


def epub_book(chapters: dict[str, str]) -> bytes:
    """A book of chapters, file name to the HTML of its body."""
    book = epub.EpubBook()
    book.set_identifier("sample")
    book.set_title("Sample")
    pages = [epub.EpubHtml(title=name, file_name=f"{name}.xhtml", content=body) for name, body in chapters.items()]
    for page in pages:
        book.add_item(page)
    book.toc = pages
    book.add_item(epub.EpubNcx())
    book.add_item(epub.EpubNav())
    book.spine = ["nav", *pages]
    target = io.BytesIO()
    epub.write_epub(target, book)
    return target.getvalue()


def repacked(archive: bytes, replaced: dict[str, bytes | None], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """The archive with members replaced, added or (``None``) left out."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(target, "w", method) as result:
        for name in source.namelist():
            if name not in replaced:
                result.writestr(name, source.read(name))
        for name, data in replaced.items():
            if data is not None:
                result.writestr(name, data)
    return target.getvalue()


HTML = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>Plant &amp; pumps</title><style>p {color: red}</style>
<script>var hidden = 1;</script></head><body><h1>Pumps</h1><p>The intake pump is blue.</p><h2>Spares</h2>
<table><thead><tr><th>Part</th><th>Price</th></tr></thead><tbody><tr><td>Valve</td><td>12</td></tr>
<tr><td>Seal</td><td>14</td></tr></tbody></table><h1>Doors</h1><p>The north door opens at seven.</p></body></html>"""
