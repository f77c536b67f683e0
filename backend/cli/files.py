"""Which files a command means: those named, and in folders those that the library can read."""

import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from backend.knowledge.parse import FILE_TYPES


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a file is not sent."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Found:
    """A file to send. ``name`` is the one it gets in the library, ``size`` is in bytes (0: unknown)."""

    path: Path
    name: str
    size: int
    problem: Problem | None = None


def find_files(paths: Sequence[Path], include: Sequence[str] = (), exclude: Sequence[str] = ()) -> list[Found]:
    """The files of ``paths``, each once, in the order given and by name within a folder.

    A file that is named itself is taken whatever its type. In folders hidden files and folders are skipped, other
    types too, and symbolic links that lead out of the folder; links to folders are not followed. The globs
    ``include`` and ``exclude`` choose within folders, by name or by path from the folder. The library tells
    documents by their name, so the second of two files with one name is a problem, not a silent replacement.
    """
    found: list[Found] = []
    seen: set[Path] = set()
    names: dict[str, Path] = {}
    for path in (file for given in paths for file in _expand(given, include, exclude)):
        real = Path(os.path.realpath(path))
        if real in seen:
            continue
        seen.add(real)
        found.append(_found(path, names))
    return found


def _found(path: Path, names: dict[str, Path]) -> Found:
    name = os.fsencode(path.name).decode("utf-8", "replace")
    try:
        size = path.stat().st_size
    except OSError as error:
        return Found(path, name, 0, Problem("unreadable", error.strerror or type(error).__name__))
    if not path.is_file():
        return Found(path, name, 0, Problem("unreadable", "not a file"))
    first = names.setdefault(unicodedata.normalize("NFC", name), path)
    if first is not path:
        return Found(path, name, size, Problem("name_taken", f"it would replace {first}; rename one of them"))
    return Found(path, name, size)


def _expand(given: Path, include: Sequence[str], exclude: Sequence[str]) -> Iterator[Path]:
    if not given.is_dir():
        yield given
        return
    root = Path(os.path.realpath(given))
    links: list[Path] = []  # last, so that a file comes by its own name
    for folder, folders, files in os.walk(given):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            path = Path(folder, name)
            if name.startswith(".") or not _is_supported(name):
                continue
            inside = path.relative_to(given)
            if _matches(inside, exclude) or (include and not _matches(inside, include)):
                continue
            if not path.is_symlink():
                yield path
            elif Path(os.path.realpath(path)).is_relative_to(root):
                links.append(path)
    yield from links


def _matches(inside: Path, globs: Sequence[str]) -> bool:
    # The slash in front lets ``**/`` stand for no folder too.
    forms = (inside.name, inside.as_posix(), f"/{inside.as_posix()}")
    return any(fnmatchcase(form, glob) for form in forms for glob in globs)


def _is_supported(name: str) -> bool:
    _, dot, extension = name.rpartition(".")
    return bool(dot) and extension.lower() in FILE_TYPES
