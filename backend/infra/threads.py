"""The directories of a conversation's files: ``DATA_DIR/threads/{owner}/{thread}/{workspace,uploads,outputs}``.

Owner and thread are UUIDs (the user, the row of the session), so no text of a user is part of where a thread lies.
"""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from backend.infra.files import THREADS

VIRTUAL_ROOT = "/mnt/user-data"
"""Where tools and sandboxes see the directories of a thread."""
WORKSPACE, UPLOADS, OUTPUTS = "workspace", "uploads", "outputs"
AREAS = (WORKSPACE, UPLOADS, OUTPUTS)


@dataclass(frozen=True, slots=True)
class ThreadPaths:
    """The three directories of a thread below ``root``. To make one touches nothing."""

    root: Path

    @property
    def workspace(self) -> Path:
        """Where the assistant works."""
        return self.root / WORKSPACE

    @property
    def uploads(self) -> Path:
        """What the user put in; tools only read it."""
        return self.root / UPLOADS

    @property
    def outputs(self) -> Path:
        """What is handed to the user."""
        return self.root / OUTPUTS

    @property
    def incoming(self) -> Path:
        """Where uploads lie until they are whole; no tool sees it."""
        return self.root / "incoming"

    def area(self, name: str) -> Path:
        """The directory of that name, one of ``AREAS``."""
        if name not in AREAS:
            raise ValueError(f"{name!r} is no directory of a thread")
        return self.root / name

    def make(self) -> None:
        """Makes the three directories, open to their owner alone; blocks."""
        for path in (self.root.parent, self.root, self.workspace, self.uploads, self.outputs):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)


def thread_paths(data_dir: Path, user_id: UUID, session_row_id: UUID) -> ThreadPaths:
    """Where the thread of a session lies."""
    return ThreadPaths(data_dir / THREADS / str(user_id) / str(session_row_id))


def thread_id_of(user_id: UUID, session_row_id: UUID) -> str:
    """``{user id}/{session row id}``, the name of a thread."""
    return f"{user_id}/{session_row_id}"


def locate_thread(data_dir: Path, thread_id: str) -> ThreadPaths:
    """Where the thread of that id lies. Raises ``ValueError`` for what is no thread id, whatever else it may look
    like."""
    owner, slash, row = thread_id.partition("/")
    if not slash:
        raise ValueError("not a thread id")
    return thread_paths(data_dir, UUID(owner), UUID(row))
