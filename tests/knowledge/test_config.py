"""Settings of the documents, and the index they choose."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.factory import open_index


@pytest.mark.parametrize("url", ["http://milvus:19530", "https://index.example", " HTTP://x "])
def test_an_index_server_is_refused_by_name(url: str) -> None:
    with pytest.raises(ValidationError, match="INDEX_URL"):
        KnowledgeConfig(index_url=url)


async def test_the_index_lies_in_the_data_directory_or_where_the_url_says(data_dir: Path) -> None:
    for config, expected in (
        (KnowledgeConfig(index_url="  "), data_dir / "index"),
        (KnowledgeConfig(index_url=str(data_dir / "elsewhere")), data_dir / "elsewhere"),
    ):
        index = await open_index(config, data_dir, dimensions=2, embedder="test")
        await index.aclose()
        assert (expected / "chunks.lance").is_dir()
