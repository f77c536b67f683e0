"""The text of a file of a thread, as its pages."""

import asyncio
from pathlib import Path

from backend.agents.tools.thread import Refusal
from backend.infra.media import UNKNOWN
from backend.infra.thread_store import StoredFile, VirtualPath, describe, open_file
from backend.infra.threads import ThreadPaths
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.parse import FILE_TYPES, Page, parse_document
from backend.knowledge.reading.base import Refused
from backend.knowledge.reading.encoding import decode

PLAIN_BYTES = 2 * 1024 * 1024
"""A text up to this size is read here, as it stands; a larger one by the parser."""
_PLAIN = ("text/", "application/json", "image/svg+xml")


async def pages_of(paths: ThreadPaths, path: VirtualPath, config: KnowledgeConfig) -> list[Page]:
    """The pages that hold text; a file without pages is one whose number is ``None``.

    Raises :class:`Refusal` (no text), ``OSError``, and what the parser raises.
    """
    found = await asyncio.to_thread(describe, paths, path)
    if found.mime_type.startswith(_PLAIN) and found.size <= PLAIN_BYTES:
        return [Page(None, await asyncio.to_thread(_plain, paths, path))]
    return (await parse_document(_real(paths, path), _file_type(found), config)).pages


def _plain(paths: ThreadPaths, path: VirtualPath) -> str:
    with open_file(paths, path) as file:
        content = file.read(PLAIN_BYTES + 1)
    try:
        return decode(content).replace("\r\n", "\n").removeprefix("\ufeff")
    except Refused as error:
        raise Refusal("the encoding of this text is not known") from error


def _file_type(found: StoredFile) -> str:
    extension = found.path.name.rpartition(".")[2].lower()
    if found.mime_type.startswith("image/") and found.mime_type != "image/svg+xml":
        raise Refusal("this is an image: view_image shows it")
    if found.mime_type.startswith(_PLAIN):
        return extension if extension in FILE_TYPES else "txt"
    if extension not in FILE_TYPES or found.mime_type == UNKNOWN:
        raise Refusal(f"this is no text ({found.mime_type})")
    return extension


def _real(paths: ThreadPaths, path: VirtualPath) -> Path:
    return paths.area(path.area).joinpath(*path.parts)
