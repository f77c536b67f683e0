"""How much lies in a directory. Blocks; nothing is followed out of it."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of regular files, and how many entries there are, directories included."""

    size: int = 0
    entries: int = 0


def used(directory: Path) -> Usage:
    """What lies in ``directory`` and below; nothing when there is none."""
    size = entries = 0
    waiting = [str(directory)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    entries += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        size += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:  # it went meanwhile
            continue
    return Usage(size, entries)
