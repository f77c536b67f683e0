"""Directories and files below the data directory."""

from pathlib import Path
from uuid import uuid4

import pytest

from backend.infra.files import document_path, make_directories, remove_document, write_atomic


def test_directories_are_the_owners_alone(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    make_directories(data_dir)
    make_directories(data_dir)
    assert sorted(path.name for path in data_dir.iterdir()) == ["documents", "index", "threads"]
    assert {path.stat().st_mode & 0o777 for path in data_dir.iterdir()} == {0o700}


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    document_id, first, second = uuid4(), uuid4(), uuid4()
    path = document_path(tmp_path, document_id, first)
    assert path == tmp_path / "documents" / str(document_id) / str(first)
    write_atomic(path, b"old")
    with pytest.raises(FileNotFoundError):
        write_atomic(path, tmp_path / "absent")
    assert [(entry.name, entry.read_bytes()) for entry in path.parent.iterdir()] == [(str(first), b"old")]
    write_atomic(document_path(tmp_path, document_id, second), path)
    path.with_name(f"{first}.part").write_bytes(b"left by a killed process")

    remove_document(tmp_path, document_id, first)
    assert [entry.name for entry in path.parent.iterdir()] == [str(second)]
    remove_document(tmp_path, document_id, second)
    remove_document(tmp_path, document_id, second)
    assert list((tmp_path / "documents").iterdir()) == []
