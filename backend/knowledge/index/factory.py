"""Chooses the index adapter."""

from pathlib import Path

from backend.infra.files import INDEX
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex
from backend.knowledge.index.lance import LanceChunkIndex


async def open_index(config: KnowledgeConfig, data_dir: Path, *, dimensions: int, embedder: str) -> ChunkIndex:
    """The index that ``config.index_url`` names, by default the one below ``data_dir``; raises as ``open`` does."""
    uri = config.index_url or str(data_dir / INDEX)
    return await LanceChunkIndex.open(uri, dimensions=dimensions, embedder=embedder)
