"""The signing key: made once in embedded mode, demanded and strong otherwise."""

import base64
import multiprocessing
import re
import secrets
import subprocess
from pathlib import Path

import pytest
from pydantic import SecretStr

from backend.auth.config import AuthConfig
from backend.auth.secret import check_secret, load_or_create_secret

ROOT = Path(__file__).parents[2]
NAME = "JWT_SECRET_KEY"
ASSIGNMENT = re.compile(r"JWT_SECRET_KEY[\"']?\s*[:=]\s*[\"']?([^\s\"'`,)#]+)")


WEAK: dict[str, str | None] = {
    "none": None,
    "empty": "",
    "blank": "   ",
    "16 bytes": secrets.token_hex(8),
    "31 bytes": secrets.token_urlsafe(48)[:31],
    "a control character": secrets.token_urlsafe(48) + "\x07",
    "one character": "a" * 64,
    "one word": "abcd1234" * 8,
    "the alphabet": "0123456789abcdefghijklmnopqrstuvwxyz",
    "a placeholder": "change-me-please-change-me-please-0123456789",
    "nearly one word": "ab" * 18 + "c",
    "an instruction": "your-32-byte-key-goes-here-1a9f03bd77c2e",
    "NUL": "\x00" * 40,
}


@pytest.mark.parametrize("name", WEAK)
def test_j04_a_weak_or_missing_key_stops_the_start(data_dir: Path, name: str) -> None:
    value = WEAK[name]
    configured = AuthConfig(jwt_secret_key=None if value is None else SecretStr(value)).jwt_secret_key
    with pytest.raises(ValueError, match=NAME) as caught:
        load_or_create_secret(data_dir, configured, embedded=False)
    text = str(caught.value)
    assert "\n" not in text
    assert not value or not value.strip() or value not in text
    assert list(data_dir.iterdir()) == []


def _repository_values() -> set[str]:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        check=False,
    )
    names = listed.stdout.decode().split("\0") if listed.returncode == 0 else []
    paths = [ROOT / name for name in names if name] or [path for path in ROOT.rglob("*.*") if ".venv" not in path.parts]
    values: set[str] = set()
    for path in paths:
        if path.is_file() and path.stat().st_size < 1_000_000:
            values.update(ASSIGNMENT.findall(path.read_text(encoding="utf-8", errors="ignore")))
    return values


def test_j04_no_value_found_in_the_repository_is_accepted(data_dir: Path) -> None:
    for value in _repository_values() | {"JWT_SECRET_KEY"}:
        with pytest.raises(ValueError, match=NAME):
            load_or_create_secret(data_dir, SecretStr(value), embedded=False)


@pytest.mark.parametrize("embedded", [True, False])
def test_a_strong_key_is_used_as_given(data_dir: Path, embedded: bool) -> None:
    for _ in range(200):
        for value in (
            secrets.token_hex(32),
            secrets.token_urlsafe(32),
            base64.b64encode(secrets.token_bytes(48)).decode(),
        ):
            assert load_or_create_secret(data_dir, SecretStr(value), embedded) == value
    assert list(data_dir.iterdir()) == []


def test_j04_embedded_mode_refuses_a_weak_key_too(data_dir: Path) -> None:
    with pytest.raises(ValueError, match=NAME):
        load_or_create_secret(data_dir, SecretStr("b" * 40), embedded=True)


def test_embedded_mode_makes_one_private_key_and_keeps_it(data_dir: Path) -> None:
    first = load_or_create_secret(data_dir, None, embedded=True)
    assert check_secret(first) == first
    path = data_dir / "jwt_secret"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    assert load_or_create_secret(data_dir, None, embedded=True) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in data_dir.iterdir()] == ["jwt_secret"]


def test_a_damaged_key_file_stops_the_start(data_dir: Path) -> None:
    (data_dir / "jwt_secret").write_text("short")
    with pytest.raises(ValueError, match=NAME):
        load_or_create_secret(data_dir, None, embedded=True)


def test_a_key_file_that_cannot_be_read_stops_the_start(data_dir: Path) -> None:
    (data_dir / "jwt_secret").mkdir()
    with pytest.raises(ValueError, match=NAME):
        load_or_create_secret(data_dir, None, embedded=True)


def _load(data_dir: str) -> str:
    return load_or_create_secret(Path(data_dir), None, embedded=True)


def test_processes_that_start_at_once_share_one_key(data_dir: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        keys = pool.map(_load, [str(data_dir)] * 16, chunksize=1)
        pool.close()
        pool.join()
    assert len(set(keys)) == 1
    assert [item.name for item in data_dir.iterdir()] == ["jwt_secret"]
