"""Files of a thread: never outside of it."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.infra.quota import Usage, used
from backend.infra.thread_store import (
    PathRefused,
    StoreFull,
    StoreLimits,
    VirtualPath,
    describe,
    list_files,
    open_file,
    remove_thread,
    virtual_path,
    write_file,
)
from backend.infra.threads import ThreadPaths, locate_thread, thread_id_of, thread_paths

LIMITS = StoreLimits(1_000, 10)


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[ThreadPaths]:
    made = thread_paths(tmp_path, uuid4(), uuid4())
    made.make()
    (tmp_path / "canary").write_text("secret")
    yield made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["canary", "threads"]
    assert (tmp_path / "canary").read_text() == "secret"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/mnt/user-data/uploads/a.csv", "/mnt/user-data/uploads/a.csv"),
        ("uploads/a.csv", "/mnt/user-data/uploads/a.csv"),
        ("a.csv", "/mnt/user-data/workspace/a.csv"),
        ("./a//b.csv", "/mnt/user-data/workspace/a/b.csv"),
        ("/mnt/user-data/outputs//./x", "/mnt/user-data/outputs/x"),
        ("outputs", "/mnt/user-data/outputs"),
    ],
)
def test_the_same_file_has_one_path(text: str, found: str):
    assert str(virtual_path(text)) == found
    assert virtual_path(found) == virtual_path(text)


@pytest.mark.parametrize(
    "text",
    [
        "/etc/passwd",
        "..",
        "uploads/../../x",
        "/mnt/user-data/../x",
        "/mnt/user-data",
        "/mnt/user-data/incoming/x",
        "/mnt/user-datax/uploads/a",
        "a\nb",
        "a\u202eb",
        "x" * 300,
        "a/" * 20 + "a",
        "//etc/passwd",
    ],
)
def test_what_is_no_path_of_a_thread_is_refused(text: str):
    with pytest.raises(PathRefused):
        virtual_path(text)


@given(st.text(max_size=80))
def test_h07_whatever_is_asked_for_stays_below_its_directory(text: str):
    try:
        path = virtual_path(text)
    except PathRefused:
        return
    root = Path("/data/thread")
    real = Path(os.path.normpath(ThreadPaths(root).area(path.area).joinpath(*path.parts)))
    assert real.is_relative_to(root / path.area)


@pytest.mark.parametrize("text", ["", "a", "a/b", "../x", f"{UUID(int=1)}", f"{UUID(int=1)}/../{UUID(int=2)}"])
def test_what_is_no_thread_id_has_no_directories(text: str, tmp_path: Path):
    with pytest.raises(ValueError):
        locate_thread(tmp_path, text)


def test_a_thread_id_and_its_directories(tmp_path: Path):
    owner, row = uuid4(), uuid4()
    assert locate_thread(tmp_path, thread_id_of(owner, row)) == thread_paths(tmp_path, owner, row)


def test_a_file_is_written_described_and_listed(paths: ThreadPaths):
    write_file(paths, virtual_path("outputs/sub/r.md"), b"# R", LIMITS)
    found = describe(paths, virtual_path("outputs/sub/r.md"))
    assert (found.size, found.mime_type) == (3, "text/markdown")
    assert list_files(paths, "outputs") == [found]
    assert used(paths.outputs) == Usage(3, 2)
    assert not any(paths.incoming.iterdir())


def test_links_lead_nowhere(paths: ThreadPaths):
    root = paths.root.parent.parent.parent
    (paths.workspace / "file").symlink_to(root / "canary")
    (paths.workspace / "folder").symlink_to(root)
    for text in ("file", "folder/canary"):
        with pytest.raises(OSError), open_file(paths, virtual_path(text)):
            pass
    with pytest.raises(OSError):
        write_file(paths, virtual_path("folder/new"), b"x", LIMITS)
    assert list_files(paths, "workspace") == []
    write_file(paths, virtual_path("file"), b"mine", LIMITS)  # takes the place of the link
    assert (root / "canary").read_text() == "secret"


def test_a_pipe_or_directory_is_no_file(paths: ThreadPaths):
    os.mkfifo(paths.workspace / "pipe")
    (paths.workspace / "folder").mkdir()
    for text in ("pipe", "folder", "workspace"):
        with pytest.raises(OSError), open_file(paths, virtual_path(text)):
            pass


def test_uploads_are_read_only_and_a_directory_is_no_target(paths: ThreadPaths):
    for text in ("uploads/x", "outputs"):
        with pytest.raises(PathRefused):
            write_file(paths, virtual_path(text), b"x", LIMITS)
    (paths.workspace / "folder").mkdir()
    with pytest.raises(OSError):
        write_file(paths, virtual_path("folder"), b"x", LIMITS)
    assert not any(paths.incoming.iterdir())


def test_a_directory_holds_so_much_and_no_more(paths: ThreadPaths):
    write_file(paths, virtual_path("big"), b"x" * 900, LIMITS)
    with pytest.raises(StoreFull):
        write_file(paths, virtual_path("more"), b"x" * 101, LIMITS)
    write_file(paths, virtual_path("big"), b"y" * 1_000, LIMITS)  # what it replaces does not count
    write_file(paths, virtual_path("outputs/other"), b"x" * 900, LIMITS)
    for number in range(9):
        write_file(paths, virtual_path(f"empty{number}"), b"", LIMITS)
    with pytest.raises(StoreFull):
        write_file(paths, virtual_path("one-too-many"), b"", LIMITS)


def test_two_that_write_the_same_file_leave_one_whole(paths: ThreadPaths):
    texts = [letter * 400 for letter in (b"a", b"b")]
    work = [threading.Thread(target=lambda t=t: [_write(paths, t) for _ in range(50)]) for t in texts]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert (paths.workspace / "same").read_bytes() in texts
    assert not any(paths.incoming.iterdir())


def _write(paths: ThreadPaths, content: bytes) -> None:
    write_file(paths, VirtualPath("workspace", ("same",)), content, StoreLimits(10_000, 100))


def test_a_thread_goes_with_all_it_holds(paths: ThreadPaths):
    write_file(paths, virtual_path("a/b/c"), b"x", LIMITS)
    remove_thread(paths)
    remove_thread(paths)
    assert not paths.root.parent.exists()
