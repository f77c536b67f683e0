"""Chooses the index adapter."""

from importlib import import_module
from pathlib import Path
from typing import Any

from backend.infra.files import INDEX
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex, IndexRebuild
from backend.knowledge.index.lance import LanceChunkIndex, LanceRebuild


async def open_index(config: KnowledgeConfig, data_dir: Path, *, dimensions: int, embedder: str) -> ChunkIndex:
    """The index that ``config.index_url`` names, by default the one below ``data_dir``; raises as ``open`` does."""
    if config.on_index_server:
        made = _milvus().MilvusChunkIndex
        return await made.open(config.index_url, _token(config), dimensions=dimensions, embedder=embedder)
    return await LanceChunkIndex.open(_uri(config, data_dir), dimensions=dimensions, embedder=embedder)


async def open_rebuild(config: KnowledgeConfig, data_dir: Path, *, dimensions: int, embedder: str) -> IndexRebuild:
    """A rebuild of that index; the one that was left unfinished, if there is one. Raises as ``open`` does."""
    if config.on_index_server:
        made = _milvus().MilvusRebuild
        return await made.open(config.index_url, _token(config), dimensions=dimensions, embedder=embedder)
    return await LanceRebuild.open(_uri(config, data_dir), dimensions=dimensions, embedder=embedder)


async def open_in_place(config: KnowledgeConfig, data_dir: Path, *, dimensions: int, embedder: str) -> IndexRebuild:
    """The index that answers as if it were a rebuild, to be completed where it stands; raises as ``open`` does."""
    return _InPlace(await open_index(config, data_dir, dimensions=dimensions, embedder=embedder))


class _InPlace:
    """The index that answers, to be filled where it stands."""

    def __init__(self, index: ChunkIndex) -> None:
        self.index = index

    async def publish(self) -> None:
        """It answers already."""

    async def aclose(self) -> None:
        await self.index.aclose()


def _milvus() -> Any:
    """Its library is an extra, and is loaded where it is chosen only."""
    try:
        return import_module("backend.knowledge.index.milvus")
    except ModuleNotFoundError as error:
        raise ValueError('INDEX_URL: an index server needs `pip install "citewire[milvus]"`') from error


def _token(config: KnowledgeConfig) -> str:
    return config.index_token.get_secret_value() if config.index_token is not None else ""


def _uri(config: KnowledgeConfig, data_dir: Path) -> str:
    return config.index_url or str(data_dir / INDEX)
