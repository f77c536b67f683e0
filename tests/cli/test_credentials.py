"""The saved login and what options make of it."""

import json
import os
from pathlib import Path

import pytest

from backend.cli.credentials import DEFAULT_URL, Credentials, CredentialsError, check_url, load, resolve, save

SAVED = Credentials("http://server:8000", "kanarie-token")


def test_a_saved_login_is_private_and_read_back(tmp_path: Path) -> None:
    config = tmp_path / "deep" / "config"
    old_mask = os.umask(0)
    try:
        path = save(SAVED, config)
    finally:
        os.umask(old_mask)
    assert path.stat().st_mode & 0o777 == 0o600
    assert config.stat().st_mode & 0o777 == 0o700
    assert load(config) == SAVED
    save(Credentials("http://other", "second"), config)
    assert load(config) == Credentials("http://other", "second")
    assert os.listdir(config) == [path.name]
    assert "kanarie" not in repr(SAVED)


def test_a_symbolic_link_is_neither_written_nor_read(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text(json.dumps({"url": "http://evil", "token": "x"}))
    (tmp_path / "credentials.json").symlink_to(target)
    for attempt in (lambda: save(SAVED, tmp_path), lambda: load(tmp_path)):
        with pytest.raises(CredentialsError, match="symbolic link"):
            attempt()
    assert "kanarie" not in target.read_text()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"url": 1, "token": "x"}', b"\xff", b"x" * 100_000])
def test_a_damaged_file_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "credentials.json").write_bytes(content)
    with pytest.raises(CredentialsError, match="citewire login"):
        load(tmp_path)


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "credentials.json")
    with pytest.raises(CredentialsError, match="not a plain file"):
        load(tmp_path)
    (tmp_path / "config").write_text("a file in the directory's place")
    with pytest.raises(CredentialsError):
        save(SAVED, tmp_path / "config")


def test_a_saved_token_goes_to_its_own_server_only(tmp_path: Path) -> None:
    save(SAVED, tmp_path)
    assert resolve(None, None, tmp_path) == SAVED
    assert resolve("http://server:8000/", None, tmp_path) == SAVED
    assert resolve("http://elsewhere", None, tmp_path) == Credentials("http://elsewhere", None)
    assert resolve("http://elsewhere", "given", tmp_path) == Credentials("http://elsewhere", "given")
    assert resolve(None, "given", tmp_path) == Credentials(SAVED.url, "given")
    assert resolve(None, None, tmp_path / "none") == Credentials(DEFAULT_URL, None)


@pytest.mark.parametrize(
    "url",
    ["", "server:8000", "ftp://x", "http://", "http://u:p@x", "http://x?a=b", "http://x#y", "http://x:port", "\x00"],
)
def test_what_is_no_address_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(CredentialsError):
        check_url(url)
