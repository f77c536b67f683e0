"""Word files, workbooks, slides and books: order, borders, headings, and what stands beside the text."""

from pathlib import Path

import pytest
from docx.document import Document
from docx.enum.style import WD_STYLE_TYPE
from docx.oxml import parse_xml
from docx.oxml.ns import nsdecls

from backend.knowledge.parse_worker import read
from backend.knowledge.reading.base import Limits, Part, Refused
from tests.knowledge.samples import add_box, add_changes, docx, epub_book, pptx, repacked, word_table, xlsx

LIMITS = Limits(10, 1000, 50_000_000)


def parts(tmp_path: Path, content: bytes, kind: str) -> list[Part]:
    path = tmp_path / "content"
    path.write_bytes(content)
    return read(path, kind, LIMITS).parts


def word(tmp_path: Path, content: bytes) -> str:
    [part] = parts(tmp_path, content, "docx")
    assert part.number is None
    return part.text


def test_h04_text_and_tables_keep_their_order_and_borders(tmp_path: Path) -> None:
    def build(document: Document) -> None:
        document.add_heading("Pumps", 1)
        document.add_paragraph("Before the table.")
        word_table(document, [["A1", "B1"], ["A2", "B2"]])
        document.add_paragraph("After the table.")
        document.add_heading("Repair", 2)
        document.add_paragraph("Below the second heading.")

    assert word(tmp_path, docx(build)) == (
        "# Pumps\n\nBefore the table.\n\n| A1 | B1 |\n| --- | --- |\n| A2 | B2 |\n\nAfter the table.\n\n"
        "## Repair\n\nBelow the second heading."
    )


def test_h04_a_table_alone_is_a_document(tmp_path: Path) -> None:
    content = docx(lambda document: word_table(document, [["A1", "B1"], ["A2", "B2"]]))
    assert word(tmp_path, content) == "| A1 | B1 |\n| --- | --- |\n| A2 | B2 |"


def test_h04_nested_and_merged_cells_keep_their_text(tmp_path: Path) -> None:
    def build(document: Document) -> None:
        table = word_table(document, [[f"r{row}c{column}" for column in range(3)] for row in range(3)])
        table.cell(0, 0).merge(table.cell(0, 1))
        table.cell(1, 2).merge(table.cell(2, 2))
        inner = table.cell(1, 0).add_table(1, 2)
        inner.cell(0, 0).text, inner.cell(0, 1).text = "inner one", "inner two"

    rows = word(tmp_path, docx(build)).splitlines()
    assert len(rows) == 4
    assert rows[0] == "| r0c0 r0c1 | r0c0 r0c1 | r0c2 |"
    assert rows[2] == "| r1c0 inner one inner two | r1c1 | r1c2 r2c2 |"
    assert rows[3] == "| r2c0 | r2c1 | r1c2 r2c2 |"


def test_h04_headers_and_footers_come_first_and_once(tmp_path: Path) -> None:
    def build(document: Document) -> None:
        document.add_heading("Pumps", 1)
        document.add_section()
        for section in document.sections:
            section.header.is_linked_to_previous = section.footer.is_linked_to_previous = False
            section.header.paragraphs[0].text = "Plant code 771"
            section.footer.paragraphs[0].text = "Revision 12"
        document.add_paragraph("The text.")

    assert word(tmp_path, docx(build)) == "Plant code 771\n\nRevision 12\n\n# Pumps\n\nThe text."


def test_h04_a_text_box_and_the_paragraph_around_it_are_read_once(tmp_path: Path) -> None:
    text = word(tmp_path, docx(lambda document: add_box(document, "Around the box.", "Tank five is full.")))
    assert text.count("Tank five is full.") == 1
    assert text.count("Around the box.") == 1


def test_h04_tracked_changes_count_as_accepted(tmp_path: Path) -> None:
    text = word(tmp_path, docx(lambda document: add_changes(document, "The gate opens at ", "nine", "seven")))
    assert text == "The gate opens at nine"


def test_h04_notes_and_comments_are_read(tmp_path: Path) -> None:
    note = "<w:footnote><w:p><w:r><w:t>See plan 9.</w:t></w:r></w:p></w:footnote>"
    notes = f"<w:footnotes {nsdecls('w')}>{note}</w:footnotes>"
    plain = docx(lambda document: document.add_paragraph("The text."))
    assert word(tmp_path, repacked(plain, {"word/footnotes.xml": notes.encode()})) == "The text.\n\nSee plan 9."


def test_headings_of_own_styles_and_of_outline_levels_are_headings(tmp_path: Path) -> None:
    def build(document: Document) -> None:
        style = document.styles.add_style("标题甲", WD_STYLE_TYPE.PARAGRAPH)
        style.base_style = document.styles["Heading 2"]
        document.add_paragraph("水泵", style="标题甲")
        document.add_paragraph("The pump.")
        heading = document.add_paragraph("Outline")
        heading._p.get_or_add_pPr().append(parse_xml(f'<w:outlineLvl {nsdecls("w")} w:val="2"/>'))
        document.add_paragraph("The outline.")

    assert word(tmp_path, docx(build)) == "## 水泵\n\nThe pump.\n\n### Outline\n\nThe outline."


def test_sheets_are_sections_with_cells(tmp_path: Path) -> None:
    content = xlsx(
        {"Prices": [["Part", "Price"], ["Valve", 12.5], ["a|b", None]], "库存": [["零件"], ["水泵"]], "No": []}
    )
    assert parts(tmp_path, content, "xlsx") == [
        Part(
            None,
            "## Prices\n\n| Part | Price |\n| --- | --- |\n| Valve | 12.5 |\n| a\\|b | |\n\n"
            "## 库存\n\n| 零件 |\n| --- |\n| 水泵 |",
        )
    ]


def test_slides_have_numbers_titles_tables_and_notes(tmp_path: Path) -> None:
    content = pptx(
        [
            ("Pumps", "Body of one", None, "Said aloud"),
            ("", "", None, ""),
            ("Parts", "", [["Part", "Price"], ["Valve", 12]], ""),
        ]
    )
    path = tmp_path / "content"
    path.write_bytes(content)
    read_content = read(path, "pptx", LIMITS)
    assert read_content.total_pages == 3
    assert read_content.parts == [
        Part(1, "# Pumps\n\nBody of one\n\nSaid aloud"),
        Part(3, "# Parts\n\n| Part | Price |\n| --- | --- |\n| Valve | 12 |"),
    ]


def test_a_book_keeps_its_headings_and_tables(tmp_path: Path) -> None:
    table = "<table><tr><th>Part</th><th>Price</th></tr><tr><td>Valve</td><td>12</td></tr></table>"
    content = epub_book({"one": f"<h1>One</h1><p>First.</p><h2>Parts</h2>{table}", "two": "<h1>二</h1><p>水泵。</p>"})
    [part] = parts(tmp_path, content, "epub")
    assert (
        part.text == "# One\n\nFirst.\n\n## Parts\n\n| Part | Price |\n| --- | --- |\n| Valve | 12 |\n\n# 二\n\n水泵。"
    )


@pytest.mark.parametrize("kind", ["docx", "xlsx", "pptx"])
def test_xml_that_is_broken_has_a_code(tmp_path: Path, kind: str) -> None:
    content, member = {
        "docx": (docx(lambda document: document.add_paragraph("x")), "word/document.xml"),
        "xlsx": (xlsx({"a": [["b"]]}), "xl/workbook.xml"),
        "pptx": (pptx([("x", "", None, "")]), "ppt/slides/slide1.xml"),
    }[kind]
    with pytest.raises(Refused) as caught:
        parts(tmp_path, repacked(content, {member: b"<broken"}), kind)
    assert caught.value.code == "parse_failed"
