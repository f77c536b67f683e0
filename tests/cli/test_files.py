"""Which files a folder stands for."""

from pathlib import Path

import pytest

from backend.cli.files import find_files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two readable files, and everything that is to be left out."""
    root = tmp_path / "library"
    for name in ("b.txt", "sub/a.PDF", "sub/.hidden.txt", ".git/c.txt", "sub/d.exe", "sub/noextension"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "outside.txt").write_text("outside")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "e.txt").write_text("e")
    (root / "out.txt").symlink_to("../outside.txt")
    (root / "away").symlink_to("../elsewhere")
    (root / "loop").symlink_to(".")
    (root / "a-link.txt").symlink_to("b.txt")
    (root / "broken.txt").symlink_to("nowhere")
    return root


def test_a_folder_is_searched_for_readable_files_inside_of_it(folder: Path) -> None:
    found = [str(item.path.relative_to(folder)) for item in find_files([folder]) if item.problem is None]
    assert found == ["b.txt", "sub/a.PDF"]


def test_a_named_file_is_taken_whatever_it_is(folder: Path) -> None:
    paths = [folder / "sub/d.exe", folder / "sub/.hidden.txt", folder / "out.txt", folder / "absent.txt"]
    found = find_files(paths)
    assert [item.path for item in found] == paths
    assert [item.problem.code if item.problem else None for item in found] == [None, None, None, "unreadable"]


def test_a_file_comes_once_and_a_second_of_its_name_is_a_problem(folder: Path) -> None:
    (folder / "sub" / "b.txt").write_text("another")
    found = find_files([folder, folder / "b.txt", folder / "sub"])
    names = [(str(item.path.relative_to(folder)), item.problem.code if item.problem else None) for item in found]
    assert [name for name in names if name[0] != "broken.txt"] == [
        ("b.txt", None),
        ("sub/a.PDF", None),
        ("sub/b.txt", "name_taken"),
    ]


def test_names_that_look_equal_are_one_name(tmp_path: Path) -> None:
    for folder, name in (("one", "caf\u00e9.txt"), ("two", "cafe\u0301.txt")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(folder)
    found = find_files([tmp_path])
    assert [item.problem.code if item.problem else None for item in found] == [None, "name_taken"]


@pytest.mark.parametrize(
    ("include", "exclude", "names"),
    [
        (["*.md"], [], ["drafts/b.md", "a.md", "deep/drafts/c.md"]),
        ([], ["drafts/*"], ["a.md", "d.txt", "deep/drafts/c.md"]),
        ([], ["**/drafts/*"], ["a.md", "d.txt"]),
        (["a.*", "*.txt"], [], ["a.md", "d.txt"]),
        (["*.md"], ["b.md", "c.md"], ["a.md"]),
    ],
)
def test_globs_choose_within_a_folder(tmp_path: Path, include: list[str], exclude: list[str], names: list[str]) -> None:
    for name in ("a.md", "drafts/b.md", "deep/drafts/c.md", "d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = find_files([tmp_path], include, exclude)
    assert {item.path.relative_to(tmp_path).as_posix() for item in found} == set(names)
