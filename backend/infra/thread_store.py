"""Files of a thread by their virtual paths: ``/mnt/user-data/{workspace,uploads,outputs}/…``.

Each part of a path is opened within the directory before it and never as a link, so nothing outside the thread is
reached, whatever a name says and whatever happens to the directories meanwhile. All functions block.
"""

import contextlib
import os
import shutil
import stat
import unicodedata
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from backend.infra.media import HEAD_BYTES, media_type_of
from backend.infra.quota import used
from backend.infra.threads import AREAS, UPLOADS, VIRTUAL_ROOT, WORKSPACE, ThreadPaths
from backend.text import clean_text

MAX_PARTS = 16
MAX_PART_BYTES = 255
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe must not hold the thread up


class PathRefused(ValueError):
    """No path within a thread. Its text says why, for who gave the path."""


class StoreFull(Exception):
    """The directory may not hold more."""


@dataclass(frozen=True, slots=True)
class VirtualPath:
    """A path within a thread: its directory, and the names below."""

    area: str
    parts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join((VIRTUAL_ROOT, self.area, *self.parts))

    @property
    def name(self) -> str:
        return self.parts[-1] if self.parts else self.area


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is there; ``size`` in bytes, ``modified`` in seconds since 1970."""

    path: VirtualPath
    size: int
    mime_type: str
    modified: float


def virtual_path(text: str) -> VirtualPath:
    """What ``text`` names. A relative path begins with a directory of the thread, or lies in ``workspace``.

    Raises :class:`PathRefused` for every other absolute path, for ``..``, control characters and what is too long.
    """
    text = clean_text(text).strip()
    relative = text.removeprefix(VIRTUAL_ROOT).removeprefix("/") if _is_virtual(text) else text
    if relative.startswith("/"):
        raise PathRefused(f"only paths below {VIRTUAL_ROOT} exist")
    parts = [part for part in relative.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise PathRefused("'..' is not allowed in a path")
    if any(unicodedata.category(char) in {"Cc", "Cf", "Cs"} for char in relative):
        raise PathRefused("a path may not hold control characters")
    if len(parts) > MAX_PARTS or any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        raise PathRefused("the path is too long")
    if _is_virtual(text) and (not parts or parts[0] not in AREAS):
        raise PathRefused(f"below {VIRTUAL_ROOT} there are only {', '.join(AREAS)}")
    if parts and parts[0] in AREAS:
        return VirtualPath(parts[0], tuple(parts[1:]))
    return VirtualPath(WORKSPACE, tuple(parts))


def _is_virtual(text: str) -> bool:
    return text == VIRTUAL_ROOT or text.startswith(VIRTUAL_ROOT + "/")


@contextlib.contextmanager
def open_file(paths: ThreadPaths, path: VirtualPath) -> Generator[BinaryIO]:
    """The regular file at ``path``. Raises ``OSError``: absent, a directory, a link or something else."""
    with open_unmanaged(paths, path) as file:
        yield file


def open_unmanaged(paths: ThreadPaths, path: VirtualPath) -> BinaryIO:
    """As :func:`open_file`; the caller closes it."""
    with _parent(paths, path) as directory:
        descriptor = os.open(path.name, _FILE, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(f"{path} is not a file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def describe(paths: ThreadPaths, path: VirtualPath) -> StoredFile:
    """What the file at ``path`` is. Errors as :func:`open_file`."""
    with open_file(paths, path) as file:
        found = os.fstat(file.fileno())
        return StoredFile(path, found.st_size, media_type_of(file.read(HEAD_BYTES), path.name), found.st_mtime)


def list_files(paths: ThreadPaths, area: str, most: int = 1_000) -> list[StoredFile]:
    """The regular files below a directory of the thread, by path, ``most`` at most; none without the directory."""
    found: list[StoredFile] = []
    for path in _walk(paths.area(area), area):
        if len(found) >= most:
            break
        with contextlib.suppress(OSError):  # it went, or it is a link
            found.append(describe(paths, path))
    return found


def _walk(directory: Path, area: str) -> Iterator[VirtualPath]:
    for folder, folders, names in os.walk(directory, followlinks=False):
        folders.sort()
        relative = Path(folder).relative_to(directory).parts
        yield from (VirtualPath(area, (*relative, name)) for name in sorted(names))


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What a directory of a thread may hold: bytes, and entries with directories counted."""

    size: int
    entries: int


def write_file(paths: ThreadPaths, path: VirtualPath, content: bytes, limits: StoreLimits) -> None:
    """Puts ``content`` at ``path``, whole or not at all; directories on the way are made.

    Raises :class:`PathRefused` for ``uploads`` and for a directory itself, :class:`StoreFull`, ``OSError``.
    """
    if path.area == UPLOADS:
        raise PathRefused(f"{VIRTUAL_ROOT}/{UPLOADS} can only be read")
    if not path.parts:
        raise PathRefused(f"{path} is a directory")
    usage = used(paths.area(path.area))
    if usage.size - _size(paths, path) + len(content) > limits.size or usage.entries >= limits.entries:
        raise StoreFull
    paths.make()
    staged = stage(paths, content)
    try:
        with _parent(paths, path, make=True) as directory:
            os.replace(staged, path.name, dst_dir_fd=directory)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


def stage(paths: ThreadPaths, source: bytes | BinaryIO) -> Path:
    """A new file with that content beside the thread's directories, whole and on the disk, to be moved in."""
    paths.incoming.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = paths.incoming / uuid4().hex
    try:
        with path.open("xb") as target:
            if isinstance(source, bytes):
                target.write(source)
            else:
                shutil.copyfileobj(source, target, 1024 * 1024)
            target.flush()
            os.fsync(target.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


def remove_thread(paths: ThreadPaths) -> None:
    """Removes all of a thread, and its owner's directory when that is empty. Absent: nothing. Raises ``OSError``."""
    if paths.root.exists():
        shutil.rmtree(paths.root)
    with contextlib.suppress(OSError):  # other threads lie there, or it is gone
        paths.root.parent.rmdir()


def _size(paths: ThreadPaths, path: VirtualPath) -> int:
    try:
        with open_file(paths, path) as file:
            return os.fstat(file.fileno()).st_size
    except OSError:
        return 0


@contextlib.contextmanager
def _parent(paths: ThreadPaths, path: VirtualPath, *, make: bool = False) -> Generator[int]:
    """A descriptor of the directory that holds ``path``."""
    descriptor = os.open(paths.area(path.area), _DIRECTORY)
    try:
        for part in path.parts[:-1]:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=descriptor)
            below = os.open(part, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        if not path.parts:
            raise IsADirectoryError(f"{path} is a directory")
        yield descriptor
    finally:
        os.close(descriptor)
