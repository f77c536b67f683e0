"""Files to pages, in a process that may be killed."""

import asyncio
import io
import json
import os
import signal
import sys
import zlib
from pathlib import Path

import pytest
from fpdf import FPDF
from pypdf import PdfReader, PdfWriter

from backend.errors import AppError, DocumentError, TooLarge, TypeMismatch
from backend.knowledge import parse
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.parse import FILE_TYPES, WORKER_ARGUMENTS, Page, file_type_of, parse_document
from backend.knowledge.parse_worker import read as read_file
from backend.knowledge.reading.base import Limits, Refused
from tests.knowledge.conftest import make_pdf
from tests.knowledge.samples import docx, epub_book, pptx, xlsx

CHINESE = "这是一个关于反应堆的中文文档。水泵的压力是三百千帕，阀门在夜间关闭。维护人员每周检查一次。"


def children() -> list[int]:
    """The parser processes of this process that are still there, dead ones that nobody waited for too."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
            command = stat.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if int(rest.split()[1]) == os.getpid() and (b"parse_worker" in command or rest.split()[0] == "Z"):
            found.append(int(name.split()[0]))
    return found


async def read(tmp_path: Path, content: bytes, file_type: str = "txt", **limits: float) -> list[Page]:
    path = tmp_path / "content"
    path.write_bytes(content)
    return (await parse_document(path, file_type, KnowledgeConfig.model_validate(limits))).pages


def encrypted(algorithm: str, password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(make_pdf(["The secret valve."]))))
    writer.encrypt(password, "owner", algorithm=algorithm)
    target = io.BytesIO()
    writer.write(target)
    return target.getvalue()


def image_only() -> bytes:
    def part(kind: bytes, body: bytes) -> bytes:
        return len(body).to_bytes(4) + kind + body + zlib.crc32(kind + body).to_bytes(4)

    header = (8).to_bytes(4) + (8).to_bytes(4) + bytes([8, 2, 0, 0, 0])
    rows = zlib.compress((b"\x00" + b"\xff\x00\x00" * 8) * 8)
    png = b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", rows) + part(b"IEND", b"")
    pdf = FPDF()
    pdf.add_page()
    pdf.image(io.BytesIO(png), w=80)
    return bytes(pdf.output())


async def test_pdf_pages_are_kept_and_blank_ones_counted(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes(make_pdf(["First page.", "", "Third page."]))
    parsed = await parse_document(path, "pdf", KnowledgeConfig())
    assert parsed.pages == [Page(1, "First page."), Page(3, "Third page.")]
    assert parsed.total_pages == 3


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("gbk", CHINESE),
        ("utf-16", CHINESE),
        ("gb18030", CHINESE + "𠮷"),
        ("cp1252", "Le café coûte 30 € à l’hôtel, où l’été est déjà fini."),
    ],
)
async def test_h05_encodings_are_found(tmp_path: Path, encoding: str, text: str) -> None:
    assert await read(tmp_path, text.encode(encoding)) == [Page(None, text)]


async def warnings_of(tmp_path: Path, content: bytes, file_type: str) -> list[dict[str, object]]:
    path = tmp_path / "content"
    path.write_bytes(content)
    return (await parse_document(path, file_type, KnowledgeConfig())).warnings


async def test_h05_replaced_characters_are_told(tmp_path: Path) -> None:
    found = await warnings_of(tmp_path, (CHINESE * 20).encode() + b"\xff", "txt")
    assert found == [{"key": "warning_replaced", "count": 1}]


async def test_h02_pages_without_text_are_told(tmp_path: Path) -> None:
    found = await warnings_of(tmp_path, make_pdf(["One.", *[""] * 48, "Fifty."]), "pdf")
    assert found == [{"key": "warning_blank_pages", "count": 48, "total": 50}]


async def test_h02_a_scan_says_how_many_pages_it_has(tmp_path: Path) -> None:
    with pytest.raises(DocumentError) as caught:
        await read(tmp_path, make_pdf([""] * 3), "pdf")
    assert (caught.value.code, caught.value.fields["pages"]) == ("no_extractable_text", 3)


async def test_h01_encrypted_for_certificates(tmp_path: Path) -> None:
    """Only the handler's name tells it: nobody without a key gets further."""
    pdf = make_pdf(["The secret valve."])
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf)))
    out = io.BytesIO()
    writer.write(out)
    trailer = out.getvalue()
    last = len(writer._objects) + 1
    position = trailer.rindex(b"trailer")
    encrypt = f"{last} 0 obj\n<< /Filter /Adobe.PubSec /SubFilter /adbe.pkcs7.s5 /V 4 >>\nendobj\n"
    content = trailer[:position].replace(b"(The secret valve.)", b"(\x93\x01\x88)") + encrypt.encode()
    content += trailer[position:].replace(b"trailer\n<<", f"trailer\n<<\n/Encrypt {last} 0 R".encode())
    with pytest.raises(DocumentError) as caught:
        await read(tmp_path, content, "pdf")
    assert caught.value.code == "encrypted_document"


async def test_d01_text_is_cleaned(tmp_path: Path) -> None:
    assert await read(tmp_path, b"one\x00 two\r\nthree\rfour e\xcc\x81") == [Page(None, "one two\nthree\nfour \u00e9")]


@pytest.mark.parametrize(
    ("content", "file_type", "code"),
    [
        (b"\xef\xbb\xbf", "txt", "empty_document"),
        (b"\xff\xfe", "txt", "empty_document"),
        (b"\x00\x00\x00", "txt", "empty_document"),
        ("\u200b \u2060\n\ufeff".encode(), "txt", "empty_document"),
        (make_pdf([""]), "pdf", "no_extractable_text"),
        (make_pdf(["   "]), "pdf", "no_extractable_text"),
        (image_only(), "pdf", "no_extractable_text"),
        (encrypted("AES-256", "real"), "pdf", "encrypted_document"),
        (encrypted("AES-256-R5", "real"), "pdf", "encrypted_document"),
        (encrypted("AES-128", "real"), "pdf", "encrypted_document"),
        (encrypted("RC4-40", "real"), "pdf", "encrypted_document"),
        (encrypted("RC4-128", "real"), "pdf", "encrypted_document"),
        (b"%PDF-1.7\nnothing more", "pdf", "parse_failed"),
        (make_pdf(["Text"]), "txt", "type_mismatch"),
        (b"just words", "pdf", "type_mismatch"),
        (b"PK\x03\x04" + b"\x00" * 100, "md", "type_mismatch"),
        (bytes(range(1, 32)) * 50 + b"\xff\x81" * 50, "txt", "encoding_unknown"),
    ],
)
async def test_h01_h02_unusable_files_have_codes(tmp_path: Path, content: bytes, file_type: str, code: str) -> None:
    with pytest.raises(AppError) as caught:
        await read(tmp_path, content, file_type)
    assert caught.value.code == code


@pytest.mark.parametrize("file_type", sorted(FILE_TYPES))
@pytest.mark.parametrize("content", [b"", b" ", b"\xef\xbb\xbf", b" \r\n\t"])
async def test_h13_nothing_is_an_empty_document(tmp_path: Path, content: bytes, file_type: str) -> None:
    path = tmp_path / "content"
    path.write_bytes(content)
    with pytest.raises(Refused) as caught:
        read_file(path, FILE_TYPES[file_type], Limits(9, 9, 9))
    assert caught.value.code == "empty_document"


@pytest.mark.parametrize(
    ("content", "file_type"),
    [
        (docx(lambda document: document), "docx"),
        (docx(lambda document: document.add_paragraph("  ")), "docx"),
        (xlsx({"Empty": []}), "xlsx"),
        (xlsx({"Blank": [[" ", None]]}), "xlsx"),
        (pptx([("", "", None, "")]), "pptx"),
        (epub_book({"one": "<p> </p>"}), "epub"),
        (b"<html><head><title>Only a title</title></head><body></body></html>", "html"),
        (b",,\n,,\n", "csv"),
        (b"{}", "json"),
        (b"\xef\xbb\xbf", "txt"),
    ],
)
async def test_h13_a_file_without_text_is_an_empty_document(tmp_path: Path, content: bytes, file_type: str) -> None:
    with pytest.raises(DocumentError) as caught:
        await read(tmp_path, content, file_type)
    assert caught.value.code == "empty_document"


@pytest.mark.parametrize("algorithm", ["RC4-40", "RC4-128", "AES-128", "AES-256-R5", "AES-256"])
async def test_h01_an_empty_password_is_none(tmp_path: Path, algorithm: str) -> None:
    assert await read(tmp_path, encrypted(algorithm, ""), "pdf") == [Page(1, "The secret valve.")]


@pytest.mark.parametrize("signal_number", [signal.SIGABRT, signal.SIGKILL])
async def test_h09_a_parser_that_was_refused_memory_says_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal_number: int
) -> None:
    program = f"import os; os.kill(os.getpid(), {int(signal_number)})"
    monkeypatch.setattr(parse, "WORKER_ARGUMENTS", ("-I", "-c", program))
    with pytest.raises(TooLarge):
        await read(tmp_path, b"text")
    monkeypatch.setattr(parse, "WORKER_ARGUMENTS", ("-I", "-c", f"raise SystemExit({128 + signal_number})"))
    with pytest.raises(TooLarge):
        await read(tmp_path, b"text")
    monkeypatch.setattr(parse, "WORKER_ARGUMENTS", ("-I", "-c", "raise SystemExit(3)"))
    with pytest.raises(DocumentError):
        await read(tmp_path, b"text")


async def test_pages_and_output_are_limited(tmp_path: Path) -> None:
    with pytest.raises(TooLarge):
        await read(tmp_path, make_pdf(["One", "Two", "Three"]), "pdf", parse_max_pages=2)
    with pytest.raises(TooLarge):
        await read(tmp_path, b"word " * 1000, parse_max_inflated_bytes=2000)
    with pytest.raises(TooLarge):
        await read(tmp_path, b"a,b\n" * 10, "csv", parse_max_cells=19)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")
async def test_memory_is_limited(tmp_path: Path) -> None:
    with pytest.raises(TooLarge):
        await read(tmp_path, "阀".encode() * 30_000_000, parse_memory_bytes=268_435_456)
    assert children() == []


async def test_a_hanging_parser_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "content"
    os.mkfifo(path)  # opening it waits for a writer that never comes
    with pytest.raises(TooLarge):
        await parse_document(path, "txt", KnowledgeConfig(parse_timeout_seconds=0.5))
    assert children() == []


async def test_a_cancelled_parser_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "content"
    os.mkfifo(path)
    task = asyncio.create_task(parse_document(path, "txt", KnowledgeConfig()))
    await asyncio.sleep(0.3)
    assert sys.platform != "linux" or len(children()) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert children() == []


async def test_the_parser_ends_when_nobody_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "content"
    os.mkfifo(path)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *WORKER_ARGUMENTS, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    limits = {"max_pages": 1, "max_cells": 1, "max_inflated_bytes": 1, "memory_bytes": 1 << 30, "cpu_seconds": 60}
    process.stdin.write(json.dumps({"path": str(path), "type": "text", **limits}).encode() + b"\n")
    await process.stdin.drain()
    process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 30) == 1


@pytest.mark.parametrize(
    ("name", "expected"), [("A.PDF", "pdf"), ("b.c.md", "md"), ("x.markdown", "markdown"), ("T.XLSX", "xlsx")]
)
def test_the_extension_is_the_type(name: str, expected: str) -> None:
    assert file_type_of(name) == expected


@pytest.mark.parametrize("name", ["x.exe", "pdf", "x.", "x.pdf.zip", ".gitignore", "old.doc", "m.docm"])
def test_other_extensions_are_refused(name: str) -> None:
    with pytest.raises(TypeMismatch):
        file_type_of(name)
