"""One fact out of a file of each type, through the library: found, with its heading and page."""

import pytest

from backend.knowledge.service import KnowledgeBase
from backend.schemas.auth import Principal
from tests.knowledge.conftest import make_pdf
from tests.knowledge.samples import HTML, add_box, add_changes, docx, epub_book, pptx, word_table, xlsx

CHAPTERS = {
    "one": f"<h1>Doors</h1><p>The north door opens at seven. {'Doors are painted. ' * 20}</p>",
    "two": f"<h1>Pumps</h1><h2>Colours</h2><p>The intake pump is blue. {'Pumps are oiled. ' * 20}</p>",
}
PARTS = [["Part", "Price", "Shelf"], ["Valve", 12, "A4"], ["Seal", 14, "B7"]]
LONG_HTML = HTML.replace("<h1>Pumps", "<h1>Plant").replace("<table>", f"<p>{'Spares are cheap. ' * 40}</p><table>")
FILES: list[tuple[str, bytes, str, str, str | None, int | None]] = [
    ("a.txt", b"The intake pump is blue.", "Which colour is the intake pump?", "pump is blue", None, None),
    ("a.md", b"# Pumps\n\nThe intake pump is blue.", "intake pump colour", "pump is blue", "Pumps", None),
    ("a.pdf", make_pdf(["", "The intake pump is blue."]), "Which colour is the intake pump?", "is blue", None, 2),
    (
        "a.docx",
        docx(
            lambda document: (
                document.add_heading("Plant", 1),
                document.add_heading("Parts", 2),
                word_table(document, PARTS),
            )
        ),
        "Where does the seal lie?",
        "| Seal | 14 | B7 |",
        "Plant > Parts",
        None,
    ),
    ("a.xlsx", xlsx({"库存": [["零件", "数量"], ["水泵", 7]]}), "水泵有多少？", "| 水泵 | 7 |", "库存", None),
    (
        "a.pptx",
        pptx([("Doors", "North door: seven.", None, ""), ("Pumps", "The intake pump is blue.", None, "It is new.")]),
        "Which colour is the intake pump?",
        "pump is blue",
        "Pumps",
        2,
    ),
    ("a.html", LONG_HTML.encode(), "What does the seal cost?", "| Seal | 14 |", "Plant > Spares", None),
    ("a.epub", epub_book(CHAPTERS), "Which colour is the intake pump?", "pump is blue", "Pumps > Colours", None),
    ("a.csv", "零件;货架\n水泵;A4\n阀门;B7\n".encode("gbk"), "阀门在哪个货架？", "| 阀门 | B7 |", None, None),
    (
        "a.json",
        b'{"pumps": [{"name": "intake", "colour": "blue"}]}',
        "Which colour is the intake pump?",
        "| intake | blue |",
        "pumps",
        None,
    ),
]


@pytest.mark.parametrize(("name", "content", "question", "fact", "heading", "page"), FILES, ids=[f[0] for f in FILES])
async def test_a_fact_of_each_type_is_found(
    library: KnowledgeBase,
    alice: Principal,
    name: str,
    content: bytes,
    question: str,
    fact: str,
    heading: str | None,
    page: int | None,
) -> None:
    await library.upload(alice, "other.txt", b"The cafeteria closes at three on Fridays.")
    await library.upload(alice, name, content)
    [info] = [info for info in await library.list_documents(alice) if info.filename == name]
    assert info.file_type == name.rpartition(".")[2]
    best = (await library.recall(alice.id, question, 5)).hits[0]
    assert fact in best.text
    assert (best.filename, best.heading, best.page_number) == (name, heading, page)


async def test_h04_each_fact_of_a_word_file_answers_its_question(library: KnowledgeBase, alice: Principal) -> None:
    def build(document) -> None:  # pyright: ignore
        document.sections[0].header.paragraphs[0].text = "Plant code K-771"
        document.sections[0].footer.paragraphs[0].text = "Released by Ms Ott"
        document.add_heading("Machines", 1)
        document.add_paragraph("The intake pump is blue.")
        table = word_table(document, PARTS)
        table.cell(1, 0).add_table(1, 2).cell(0, 1).text = "gasket of rubber"
        document.add_paragraph("Oil is changed in spring.")
        add_box(document, "A drawing of the yard.", "Tank five holds acid.")
        add_changes(document, "The gate opens at ", "nine", "seven")

    await library.upload(alice, "plant.docx", docx(build))
    for question, fact in {
        "What is the plant code?": "K-771",
        "Who released it?": "Ms Ott",
        "Which shelf has the seal?": "| Seal | 14 | B7 |",
        "What is the gasket made of?": "gasket of rubber",
        "When is oil changed?": "in spring",
        "What is a drawing of?": "of the yard",
        "What does tank five hold?": "holds acid",
        "When does the gate open?": "opens at nine",
    }.items():
        hits = (await library.recall(alice.id, question, 3)).hits
        assert any(fact in hit.text for hit in hits), question
        assert not any("seven" in hit.text for hit in hits)


async def test_h02_a_document_with_few_pages_of_text_is_indexed_with_all_its_pages(
    library: KnowledgeBase, alice: Principal
) -> None:
    pages = [""] * 50
    pages[2], pages[41] = "The intake pump is blue.", "The north door opens at seven."
    assert (await library.upload(alice, "scan.pdf", make_pdf(pages))).chunks_processed == 2
    [info] = await library.list_documents(alice)
    assert (info.pages, info.chunk_count) == (50, 2)
    [hit, *_] = (await library.recall(alice.id, "When does the north door open?", 5)).hits
    assert hit.page_number == 42
