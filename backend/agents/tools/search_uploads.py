"""``search_uploads``: places in the user's files, by words; for files that are too long to read whole."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain.tools import tool
from langchain_core.tools import BaseTool

from backend.agents.tools.texts import pages_of
from backend.agents.tools.thread import Refusal, Runtime, ThreadTools, told
from backend.errors import DocumentError, TooLarge, TypeMismatch
from backend.infra.analyze import analyze, analyze_query
from backend.infra.thread_store import VirtualPath, list_files, virtual_path
from backend.infra.threads import UPLOADS, ThreadPaths
from backend.knowledge.chunk import NewChunk, chunk_pages
from backend.knowledge.index.base import IndexRow
from backend.knowledge.index.memory import MemoryChunkIndex
from backend.knowledge.parse import Page
from backend.text import both_ends, clean_text, rough_tokens

TOOL_NAME = "search_uploads"
MAX_QUERY_CHARS = 1_000
MAX_FILES = 50
MAX_TEXT_CHARS = 1_000_000
"""Of all files together; what lies behind is not searched, and that is said."""
FOUND = 6
_NOBODY = UUID(int=0)

Found = tuple[str, list[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class _Text:
    path: VirtualPath
    pages: list[Page]


def build_search_uploads(tools: ThreadTools) -> BaseTool:
    """The tool over ``tools``. Its artifact is the passages as mappings: ``filename``, ``page_number`` (null where the
    format has no pages), ``heading``, ``text``."""

    @tool(TOOL_NAME, response_format="content_and_artifact")
    async def search_uploads(query: str, runtime: Runtime, path: str | None = None) -> Found:
        """Find passages in the files that the user uploaded, by words.

        Args:
            query: What to look for, in the words that the file may use.
            path: One file to search; by default all uploads.
        """
        found = await _search(tools, runtime, both_ends(clean_text(query), MAX_QUERY_CHARS), path)
        return (found, []) if isinstance(found, str) else found

    return search_uploads


@told
async def _search(tools: ThreadTools, runtime: Runtime, query: str, path: str | None) -> Found:
    paths = tools.paths(runtime)
    wanted = await asyncio.to_thread(_all, paths) if path is None else [virtual_path(path)]
    texts, whole = await _texts(tools, paths, wanted, one=path is not None)
    if not texts:
        raise Refusal("there are no uploaded files with text")
    leaves = await asyncio.to_thread(_leaves, texts)
    best = await _best(leaves, query)
    note = "" if whole else "\n(not all of the files could be searched)"
    if not best:
        return f"Nothing was found for these words.{note}", []
    return "\n\n".join(_shown(item, leaf) for item, leaf in best) + note, [_mapping(item, leaf) for item, leaf in best]


def _all(paths: ThreadPaths) -> list[VirtualPath]:
    return [item.path for item in list_files(paths, UPLOADS, MAX_FILES)]


async def _texts(
    tools: ThreadTools, paths: ThreadPaths, wanted: Sequence[VirtualPath], *, one: bool
) -> tuple[list[_Text], bool]:
    """The texts, up to the limit, and whether that is all. A file without text is left out, unless it is the ``one``
    that was asked for: then the reason is raised."""
    texts: list[_Text] = []
    left = MAX_TEXT_CHARS
    for path in wanted:
        try:
            pages = await pages_of(paths, path, tools.parsing)
        except (Refusal, DocumentError, TypeMismatch, TooLarge, OSError):
            if one:
                raise
            continue
        kept: list[Page] = []
        for page in pages:
            kept.append(Page(page.number, page.text[:left]))
            left -= len(page.text)
            if left <= 0:
                return [*texts, _Text(path, kept)], False
        texts.append(_Text(path, kept))
    return texts, True


def _leaves(texts: Sequence[_Text]) -> list[tuple[_Text, NewChunk]]:
    return [
        (item, leaf)
        for number, item in enumerate(texts)
        for leaf in chunk_pages(item.pages, UUID(int=number), rough_tokens)
        if leaf.level == 3
    ]


async def _best(leaves: Sequence[tuple[_Text, NewChunk]], query: str) -> list[tuple[_Text, NewChunk]]:
    words = analyze_query(query)
    if not words:
        return []
    by_id = {leaf.id: (item, leaf) for item, leaf in leaves}
    # A loop of its own in a thread: the index computes without a pause.
    return [by_id[found] for found in await asyncio.to_thread(lambda: asyncio.run(_ranked(leaves, words)))]


async def _ranked(leaves: Sequence[tuple[_Text, NewChunk]], words: str) -> list[UUID]:
    index = MemoryChunkIndex(0)
    await index.add(_rows(leaves))
    hits = await index.search(None, words, limit=FOUND, user_id=_NOBODY)
    return [hit.chunk_id for hit in hits.hits[:FOUND]]


def _rows(leaves: Sequence[tuple[_Text, NewChunk]]) -> list[IndexRow]:
    return [IndexRow(leaf.id, _NOBODY, _NOBODY, False, analyze(leaf.indexed_text), ()) for _, leaf in leaves]


def _shown(item: _Text, leaf: NewChunk) -> str:
    page = "" if leaf.page_number is None else f" (page {leaf.page_number})"
    return f"{item.path}{page}:\n{leaf.text}"


def _mapping(item: _Text, leaf: NewChunk) -> dict[str, Any]:
    return {
        "filename": item.path.name,
        "page_number": leaf.page_number,
        "heading": leaf.heading,
        "text": leaf.text,
    }
