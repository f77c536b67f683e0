"""The files of a conversation as its routes see them.

The thread's directory is what is true of them. The session row has a copy of the list, so that a turn without files
looks nowhere; every change of an upload writes it anew, under the user's lock.
"""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from backend.chat import repository
from backend.chat.thread_record import readable_artifacts
from backend.chat.thread_repository import record_uploads, thread_row
from backend.errors import NotFound, TooLarge, Unauthorized
from backend.infra.database.engine import reading, transaction
from backend.infra.database.tables import ChatSession
from backend.infra.filenames import safe_filename
from backend.infra.files import THREADS
from backend.infra.quota import used
from backend.infra.thread_store import (
    PathRefused,
    StoredFile,
    VirtualPath,
    describe,
    list_files,
    open_unmanaged,
    remove_thread,
    stage,
    virtual_path,
)
from backend.infra.threads import OUTPUTS, UPLOADS, ThreadPaths, locate_thread, thread_paths
from backend.log import get_logger
from backend.schemas.auth import Principal
from backend.schemas.chat import UploadedFile
from backend.schemas.files import Artifact

LEFT_OVER_SECONDS = 3_600.0
"""What lies among the incoming files for so long was left by a process that is gone."""
ROWS_AT_ONCE = 500

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class IncomingFile:
    """A file as it came: the name that the client gave, its content and size."""

    name: str
    content: BinaryIO
    size: int


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file to send; who has it closes ``content``."""

    filename: str
    mime_type: str
    size: int
    content: BinaryIO


class ThreadFiles:
    """Uploads and artifacts, each method for the user that asks: another's session is one that was never used.

    ``max_files`` counts uploads of a session, ``max_bytes`` all files of all sessions of a user. Every method raises
    :class:`~backend.errors.StorageUnavailable` when PostgreSQL cannot be reached.
    """

    def __init__(self, engine: AsyncEngine, data_dir: Path, *, max_files: int, max_bytes: int) -> None:
        self._engine = engine
        self._data_dir = data_dir
        self._max_files = max_files
        self._max_bytes = max_bytes

    def locate(self, thread_id: str) -> ThreadPaths:
        """The directories of a thread. Raises ``ValueError`` for what is no thread id."""
        return locate_thread(self._data_dir, thread_id)

    async def listing(self, thread_id: str) -> Sequence[Mapping[str, Any]]:
        """The uploads of a thread, as its state has them."""
        return [item.model_dump() for item in await asyncio.to_thread(_uploads, self.locate(thread_id))]

    # --- uploads ---

    async def upload(self, user: Principal, session_id: str, files: Sequence[IncomingFile]) -> list[UploadedFile]:
        """Puts files into the session, which is made if it is new; a name that is there already is replaced.

        All of them or none. Gives the files that were added, under the names that they got. Raises :class:`TooLarge`
        (``limit``: which one), :class:`Unauthorized` (the account is gone), :class:`NotFound` (deleted meanwhile).
        """
        named = {safe_filename(item.name): item for item in files}
        await self._check_size(user.id, sum(item.size for item in named.values()))
        if len(named) > self._max_files:
            raise TooLarge(limit="MAX_FILES_PER_SESSION")
        paths = thread_paths(self._data_dir, user.id, await self._session_row(user.id, session_id, named))
        staged: dict[str, Path] = {}
        try:
            for name, item in named.items():
                staged[name] = await asyncio.to_thread(stage, paths, item.content)
            await self._check_size(user.id, 0)
            return await asyncio.shield(self._take_in(user.id, session_id, paths, staged))
        finally:
            await asyncio.shield(asyncio.to_thread(_discard, list(staged.values())))

    async def _check_size(self, user_id: UUID, more: int) -> None:
        """What is on its way lies there already, so of two uploads at once the later one sees both."""
        usage = await asyncio.to_thread(used, self._data_dir / THREADS / str(user_id))
        if usage.size + more > self._max_bytes:
            raise TooLarge(limit="MAX_BYTES_PER_USER")

    async def _session_row(self, user_id: UUID, session_id: str, names: Mapping[str, Any]) -> UUID:
        async with transaction(self._engine) as connection:
            if await repository.lock_user(connection, user_id) is None:
                raise Unauthorized
            row = await thread_row(connection, user_id, session_id)
            if row is not None:
                await self._check_count(thread_paths(self._data_dir, user_id, row), names)
            return (await repository.touch_session(connection, user_id, session_id)).id

    async def _check_count(self, paths: ThreadPaths, names: Mapping[str, Any]) -> None:
        there = {item.filename for item in await asyncio.to_thread(_uploads, paths)}
        if len(there | names.keys()) > self._max_files:
            raise TooLarge(limit="MAX_FILES_PER_SESSION")

    async def _take_in(
        self, user_id: UUID, session_id: str, paths: ThreadPaths, staged: Mapping[str, Path]
    ) -> list[UploadedFile]:
        async with transaction(self._engine) as connection:
            row = await self._locked(connection, user_id, session_id, paths)
            await self._check_count(paths, staged)
            await asyncio.to_thread(_move_in, paths, staged)
            files = await asyncio.to_thread(_uploads, paths)
            await record_uploads(connection, row, files, staged.keys())
        return [item for item in files if item.filename in staged]

    async def _locked(
        self, connection: AsyncConnection, user_id: UUID, session_id: str, paths: ThreadPaths | None = None
    ) -> UUID:
        """The session's row under the user's lock. Raises :class:`NotFound`: there is none, or it has other files."""
        await repository.lock_user(connection, user_id)
        row = await thread_row(connection, user_id, session_id)
        if row is None or (paths is not None and paths != thread_paths(self._data_dir, user_id, row)):
            raise NotFound
        return row

    async def uploads(self, user: Principal, session_id: str) -> list[UploadedFile]:
        """The uploads of the session, by name; none for one that was not used yet."""
        paths = await self._paths(user.id, session_id)
        return [] if paths is None else await asyncio.to_thread(_uploads, paths)

    async def delete_upload(self, user: Principal, session_id: str, filename: str) -> str:
        """Removes an upload; its name as it was. Raises :class:`NotFound`."""
        if filename != safe_filename(filename):
            raise NotFound
        return await asyncio.shield(self._delete_upload(user.id, session_id, filename))

    async def _delete_upload(self, user_id: UUID, session_id: str, filename: str) -> str:
        async with transaction(self._engine) as connection:
            row = await self._locked(connection, user_id, session_id)
            paths = thread_paths(self._data_dir, user_id, row)
            try:
                await asyncio.to_thread((paths.uploads / filename).unlink)
            except OSError as error:
                raise NotFound from error
            await record_uploads(connection, row, await asyncio.to_thread(_uploads, paths), [])
        return filename

    # --- artifacts ---

    async def artifacts(self, user: Principal, session_id: str) -> list[Artifact]:
        """What the assistant has handed over in the session and is there, in that order."""
        query = select(ChatSession.id, ChatSession.thread_state)
        query = query.where(ChatSession.user_id == user.id, ChatSession.session_id == session_id)
        async with reading(self._engine) as connection:
            row = (await connection.execute(query)).first()
        if row is None:
            return []
        paths = thread_paths(self._data_dir, user.id, row.id)
        presented = readable_artifacts(row.thread_state.get("artifacts"))
        found = await asyncio.to_thread(_described, paths, presented)
        return [_artifact(session_id, item) for item in found]

    async def open_artifact(self, user: Principal, session_id: str, path: str) -> OpenedFile:
        """A file of the session: ``outputs/report.md`` or a whole virtual path. Raises :class:`NotFound`."""
        paths = await self._paths(user.id, session_id)
        if paths is None:
            raise NotFound
        try:
            return await asyncio.to_thread(_open, paths, _requested(path))
        except (PathRefused, OSError) as error:
            raise NotFound from error

    async def _paths(self, user_id: UUID, session_id: str) -> ThreadPaths | None:
        async with reading(self._engine) as connection:
            row = await thread_row(connection, user_id, session_id)
        return None if row is None else thread_paths(self._data_dir, user_id, row)

    # --- upkeep ---

    async def sweep(self) -> None:
        """Removes the directories of threads that have no session, and what was left among incoming files."""
        threads = await asyncio.to_thread(_threads, self._data_dir)
        for start in range(0, len(threads), ROWS_AT_ONCE):
            some = threads[start : start + ROWS_AT_ONCE]
            query = select(ChatSession.user_id, ChatSession.id).where(ChatSession.id.in_([row for _, row in some]))
            async with reading(self._engine) as connection:
                live = {(found.user_id, found.id) for found in await connection.execute(query)}
            for thread in some:
                paths = thread_paths(self._data_dir, *thread)
                await asyncio.to_thread(_drop_left_overs if thread in live else _remove, paths)


def _uploads(paths: ThreadPaths) -> list[UploadedFile]:
    return [
        UploadedFile(filename=item.path.name, size=item.size, path=str(item.path), mime_type=item.mime_type)
        for item in list_files(paths, UPLOADS)
    ]


def _move_in(paths: ThreadPaths, staged: Mapping[str, Path]) -> None:
    paths.make()
    for name, path in staged.items():
        path.replace(paths.uploads / name)


def _discard(staged: Sequence[Path]) -> None:
    for path in staged:
        path.unlink(missing_ok=True)


def _described(paths: ThreadPaths, presented: Sequence[str]) -> list[StoredFile]:
    found: list[StoredFile] = []
    for text in presented:
        try:
            found.append(describe(paths, virtual_path(text)))
        except (PathRefused, OSError):
            continue
    return found


def _artifact(session_id: str, item: StoredFile) -> Artifact:
    inside = "/".join((item.path.area, *item.path.parts))
    return Artifact(
        path=str(item.path),
        filename=item.path.name,
        size=item.size,
        mime_type=item.mime_type,
        modified_at=datetime.fromtimestamp(item.modified, UTC),
        url=f"/sessions/{quote(session_id)}/artifacts/{quote(inside)}",
    )


def _requested(path: str) -> VirtualPath:
    """A path in an address: below the root, with or without its name, or else a file among the outputs."""
    found = virtual_path(f"/{path}" if path.startswith("mnt/") else path)
    if found.area != path.split("/", 1)[0] and not path.startswith(("mnt/", "/")):
        return VirtualPath(OUTPUTS, found.parts)
    return found


def _open(paths: ThreadPaths, path: VirtualPath) -> OpenedFile:
    described = describe(paths, path)
    content = open_unmanaged(paths, path)
    return OpenedFile(path.name, described.mime_type, os.fstat(content.fileno()).st_size, content)


def _threads(data_dir: Path) -> list[tuple[UUID, UUID]]:
    """The threads that have a directory."""
    found: list[tuple[UUID, UUID]] = []
    for owner in (data_dir / THREADS).iterdir():
        for thread in owner.iterdir() if owner.is_dir() else ():
            try:
                found.append((UUID(owner.name), UUID(thread.name)))
            except ValueError:  # not ours
                continue
    return found


def _drop_left_overs(paths: ThreadPaths) -> None:
    if paths.incoming.is_dir():
        for path in paths.incoming.iterdir():
            if path.stat().st_mtime < time.time() - LEFT_OVER_SECONDS:
                path.unlink(missing_ok=True)


def _remove(paths: ThreadPaths) -> None:
    try:
        remove_thread(paths)
    except OSError as error:  # the next sweep tries again
        _log.warning("thread_not_removed", error=type(error).__name__)
