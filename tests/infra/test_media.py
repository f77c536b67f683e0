import pytest

from backend.infra.media import media_type_of, served_type


@pytest.mark.parametrize(
    ("head", "name", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n....", "a.txt", "image/png"),
        (b"just text", "photo.png", "text/plain"),
        (b"a,b\n1,2\n", "x.csv", "text/csv"),
        ("表,值".encode(), "x.csv", "text/csv"),
        ("表,值".encode("gbk"), "x.csv", "text/csv"),
        ("text".encode("utf-16"), "x.txt", "text/plain"),
        (b"# T", "x.md", "text/markdown"),
        (b"{}", "x.json", "application/json"),
        (b"<html>", "x.html", "text/html"),
        (b"<?xml version='1.0'?><svg xmlns='x'>", "x.png", "image/svg+xml"),
        (b"\xff\xd8\xff\xe0", "x", "image/jpeg"),
        (b"GIF89a", "x", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "x", "image/webp"),
        (b"%PDF-1.7", "x.txt", "application/pdf"),
        (b"PK\x03\x04", "x.zip", "application/zip"),
        (
            b"PK\x03\x04",
            "x.xlsx",
            "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        ),
        (b"\x7fELF\x00\x01", "x.txt", "application/octet-stream"),
        (b"", "x.csv", "text/csv"),
        ("é".encode() * 2047 + "é".encode()[:1], "x.txt", "text/plain"),
    ],
)
def test_a_file_is_what_its_bytes_say(head: bytes, name: str, kind: str):
    assert media_type_of(head, name) == kind


def test_j09_nothing_is_served_that_a_browser_runs():
    assert served_type("text/html") == "text/plain; charset=utf-8"
    assert served_type("image/svg+xml") == "application/octet-stream"
    assert served_type("application/zip") == "application/octet-stream"
    assert served_type("text/csv") == "text/csv; charset=utf-8"
    assert served_type("image/png") == "image/png"
