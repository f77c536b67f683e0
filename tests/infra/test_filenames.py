"""H07: what a user typed becomes one harmless name."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.infra.filenames import MAX_NAME_BYTES, safe_filename


@given(st.text(max_size=400))
def test_h07_every_name_is_one_safe_part_of_a_path(name: str):
    safe = safe_filename(name)
    assert 0 < len(safe.encode()) <= MAX_NAME_BYTES
    assert Path("/root", safe).parent == Path("/root")
    assert safe[0] not in ". -"
    assert all(char in " ._-()+,@&=" or unicodedata.category(char)[0] in "LMN" for char in safe)
    assert unicodedata.is_normalized("NFC", safe)
    assert safe_filename(safe) == safe


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("sales.csv", "sales.csv"),
        ("My report (final), v2.docx", "My report (final), v2.docx"),
        ("报告 2024.pdf", "报告 2024.pdf"),
        ("../../x.txt", "x.txt"),
        ("/tmp/x.txt", "x.txt"),
        ("..\\..\\x", "x"),
        ("%2e%2e/x", "x"),
        ("....//", "file"),
        ("C:\\x", "x"),
        ("C:x", "C_x"),
        ("\\\\host\\share", "share"),
        ("..", "file"),
        ("", "file"),
        (".env", "env"),
        ("-rf", "rf"),
        ("a\x00b.txt", "ab.txt"),
        ("a\nb.txt", "a_b.txt"),
        ("photo\u202egnp.exe", "photo_gnp.exe"),
        ("<img src=x onerror=alert(1)>.png", "_img src=x onerror=alert(1)_.png"),
        ("e\u0301.txt", "é.txt"),
        ("x.txt.", "x.txt"),
    ],
)
def test_h07_names(name: str, safe: str):
    assert safe_filename(name) == safe


def test_a_long_name_keeps_its_extension():
    safe = safe_filename("报" * 300 + ".pdf")
    assert safe.endswith("报.pdf")
    assert len(safe.encode()) <= MAX_NAME_BYTES
    assert safe_filename("x." + "y" * 300) == "x." + "y" * (MAX_NAME_BYTES - 2)
