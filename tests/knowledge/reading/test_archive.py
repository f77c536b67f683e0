"""Zip-based files are refused before anything is unpacked in memory."""

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from backend.errors import AppError, TooLarge
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.parse import FILE_TYPES, parse_document
from backend.knowledge.parse_worker import read
from backend.knowledge.reading.archive import MAX_MEMBERS, check_archive
from backend.knowledge.reading.base import Limits, Refused
from tests.knowledge.samples import docx, epub_book, pptx, repacked, xlsx

MB = 1024 * 1024
LIMITS = Limits(max_pages=100, max_cells=1000, max_inflated_bytes=20 * MB)
WORD = docx(lambda document: document.add_paragraph("The lamp is red."))
SHEET = xlsx({"Stock": [["Part", "Count"], ["Valve", 7]]})
SHOW = pptx([("Pumps", "The intake pump is blue.", None, "")])
BOOK = epub_book({"one": "<h1>One</h1><p>The lamp is red.</p>"})
SAMPLES = {"docx": WORD, "xlsx": SHEET, "pptx": SHOW, "epub": BOOK}
LAUGHS = "<!DOCTYPE x [<!ENTITY a0 'ha'>" + "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 10))
EXTERNAL = "<!DOCTYPE x [<!ENTITY a9 SYSTEM 'file:///etc/passwd'>"


def check(tmp_path: Path, content: bytes, kind: str = "docx", limits: Limits = LIMITS) -> str | None:
    """The code of the refusal."""
    path = tmp_path / "content"
    path.write_bytes(content)
    try:
        check_archive(path, kind, limits)
    except Refused as refused:
        return refused.code
    return None


def lying(archive: bytes, name: str, size: int) -> bytes:
    """The archive that declares ``size`` for the member ``name``, in its directory and before the data."""
    data = bytearray(archive)
    struct.pack_into("<L", data, data.index(name.encode()) - 30 + 22, size)
    struct.pack_into("<L", data, data.rindex(name.encode()) - 46 + 24, size)
    return bytes(data)


@pytest.mark.parametrize("kind", SAMPLES)
def test_intact_files_pass(tmp_path: Path, kind: str) -> None:
    assert check(tmp_path, SAMPLES[kind], kind) is None


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("named", ["docx", "xlsx", "pptx", "epub", "pdf", "txt", "md", "html", "csv", "json"])
def test_a_file_under_the_name_of_another_type_is_refused(tmp_path: Path, kind: str, named: str) -> None:
    path = tmp_path / "content"
    path.write_bytes(SAMPLES[kind])
    if kind == named:
        assert read(path, FILE_TYPES[named], LIMITS).parts
        return
    with pytest.raises(Refused) as caught:
        read(path, FILE_TYPES[named], LIMITS)
    assert caught.value.code == "type_mismatch"


def test_h09_a_declared_bomb_is_refused_unread(tmp_path: Path) -> None:
    bomb = repacked(WORD, {"word/media/image1.png": b"not as much as declared"})
    assert check(tmp_path, bomb) is None
    assert check(tmp_path, lying(bomb, "word/media/image1.png", 60 * MB)) == "too_large"


def test_h09_a_lying_bomb_is_refused_in_pieces(tmp_path: Path) -> None:
    bomb = lying(repacked(WORD, {"word/media/image1.png": bytes(60 * MB)}), "word/media/image1.png", 100)
    with zipfile.ZipFile(io.BytesIO(bomb)) as archive:
        assert sum(member.file_size for member in archive.infolist()) < MB
    tracemalloc.start()
    assert check(tmp_path, bomb) == "too_large"
    assert tracemalloc.get_traced_memory()[1] < 5 * MB
    tracemalloc.stop()


def test_h09_too_many_members_are_not_even_listed(tmp_path: Path) -> None:
    bomb = repacked(WORD, {f"m{n}": b"" for n in range(MAX_MEMBERS)}, zipfile.ZIP_STORED)
    tracemalloc.start()
    assert check(tmp_path, bomb) == "too_large"
    assert tracemalloc.get_traced_memory()[1] < 2 * MB
    tracemalloc.stop()


async def test_h09_a_nested_archive_is_not_entered(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(60 * MB))
        archive.writestr("inner.txt", "The inner lamp is green.")
    path = tmp_path / "content"
    path.write_bytes(repacked(WORD, {"word/embeddings/inner.zip": inner.getvalue(), "word/embeddings/x.docx": WORD}))
    parsed = await parse_document(path, "docx", KnowledgeConfig(parse_max_inflated_bytes=20 * MB))
    assert [page.text for page in parsed.pages] == ["The lamp is red."]


@pytest.mark.parametrize("entities", [LAUGHS, EXTERNAL])
@pytest.mark.parametrize(
    ("kind", "member"),
    [
        ("docx", "word/document.xml"),
        ("docx", "word/header1.xml"),
        ("xlsx", "xl/sharedStrings.xml"),
        ("xlsx", "xl/workbook.xml"),
        ("pptx", "ppt/slides/slide1.xml"),
        ("epub", "EPUB/one.xhtml"),
    ],
)
async def test_h09_entities_are_harmless(tmp_path: Path, entities: str, kind: str, member: str) -> None:
    with zipfile.ZipFile(io.BytesIO(SAMPLES[kind])) as archive:
        known = member in archive.namelist()
        xml = archive.read(member).decode() if known else '<w:hdr xmlns:w="http://x"><w:p/></w:hdr>'
    body = xml[xml.index("?>") + 2 :] if xml.startswith("<?xml") else xml
    body = body.replace("<!DOCTYPE html>", "").replace("lamp", "&a9;").replace("blue", "&a9;").replace("Valve", "&a9;")
    path = tmp_path / "content"
    path.write_bytes(repacked(SAMPLES[kind], {member: f'<?xml version="1.0"?>{entities}]>{body}'.encode()}))
    try:
        parsed = await parse_document(path, kind, KnowledgeConfig(parse_memory_bytes=512 * MB))
    except AppError as error:
        assert error.code in {"parse_failed", "too_large", "empty_document"}
    else:
        assert "hahaha" not in parsed.pages[0].text
        assert "root:" not in parsed.pages[0].text
        assert len(parsed.pages[0].text) < 10_000


async def test_h09_a_page_that_inflates_ends_in_its_process(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(repacked(SHEET, {"xl/sharedStrings.xml": b"<sst><si><t>" + b" " * 300 * MB}))
    with pytest.raises(TooLarge):
        await parse_document(path, "xlsx", KnowledgeConfig(parse_memory_bytes=256 * MB))


@pytest.mark.parametrize(("kind", "limits"), [("xlsx", Limits(9, 3, MB)), ("pptx", Limits(0, 9, MB))])
def test_cells_and_slides_are_counted(tmp_path: Path, kind: str, limits: Limits) -> None:
    assert check(tmp_path, SAMPLES[kind], kind, limits) == "too_large"
    assert check(tmp_path, SAMPLES[kind], kind, Limits(1, 4, MB)) is None


def test_damage_is_found(tmp_path: Path) -> None:
    middle = len(WORD) // 3
    assert check(tmp_path, WORD[: len(WORD) // 2]) == "parse_failed"
    assert check(tmp_path, WORD[:middle] + bytes(50) + WORD[middle + 50 :]) == "parse_failed"
    assert check(tmp_path, b"PK\x03\x04") == "parse_failed"
    assert check(tmp_path, repacked(WORD, {"x": b"1"}, zipfile.ZIP_BZIP2)) == "parse_failed"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"\xd0\xcf\x11\xe0" + bytes(100) + "EncryptedPackage".encode("utf-16-le"), "encrypted_document"),
        (b"\xd0\xcf\x11\xe0" + bytes(100) + "WordDocument".encode("utf-16-le"), "type_mismatch"),
        (b"just text", "type_mismatch"),
        (b"  \n", "empty_document"),
        (repacked(WORD, {"[Content_Types].xml": None}), "type_mismatch"),
        (repacked(BOOK, {"mimetype": b"text/plain"}), "type_mismatch"),
    ],
)
def test_what_is_no_such_archive_has_a_code(tmp_path: Path, content: bytes, code: str) -> None:
    assert check(tmp_path, content) == code


def test_a_member_with_a_password_is_encrypted(tmp_path: Path) -> None:
    data = bytearray(WORD)
    data[data.index(b"PK\x01\x02") + 8] |= 1
    assert check(tmp_path, bytes(data)) == "encrypted_document"
