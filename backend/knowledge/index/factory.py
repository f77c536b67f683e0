"""Chooses the index adapter."""

from pathlib import Path

from backend.infra.files import INDEX
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex, IndexRebuild
from backend.knowledge.index.lance import LanceChunkIndex, LanceRebuild


async def open_index(config: KnowledgeConfig, data_dir: Path, *, dimensions: int, embedder: str) -> ChunkIndex:
    """The index that ``config.index_url`` names, by default the one below ``data_dir``; raises as ``open`` does."""
    return await LanceChunkIndex.open(_uri(config, data_dir), dimensions=dimensions, embedder=embedder)


async def open_rebuild(config: KnowledgeConfig, data_dir: Path, *, dimensions: int, embedder: str) -> IndexRebuild:
    """A rebuild of that index; the one that was left unfinished, if there is one. Raises as ``open`` does."""
    return await LanceRebuild.open(_uri(config, data_dir), dimensions=dimensions, embedder=embedder)


def _uri(config: KnowledgeConfig, data_dir: Path) -> str:
    return config.index_url or str(data_dir / INDEX)
