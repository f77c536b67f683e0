"""Settings of the documents, and the index they choose."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.factory import open_index, open_rebuild
from tests.support.milvus import milvus_lite


def test_credentials_of_an_index_server_are_not_part_of_its_address() -> None:
    with pytest.raises(ValidationError, match="INDEX_TOKEN") as refused:
        KnowledgeConfig(index_url="http://root:secret@milvus:19530")
    assert "secret" not in str(refused.value.errors(include_input=False, include_url=False))


@pytest.mark.parametrize("url", ["http://milvus:19530", "https://index.example", " HTTP://x "])
def test_an_address_is_that_of_an_index_server(url: str) -> None:
    assert KnowledgeConfig(index_url=url).on_index_server
    assert not KnowledgeConfig(index_url="s3://bucket/index").on_index_server


async def test_an_index_server_is_opened_by_its_address(data_dir: Path) -> None:
    with milvus_lite(str(data_dir)) as url:
        config = KnowledgeConfig(index_url=url)
        index = await open_index(config, data_dir, dimensions=2, embedder="test")
        assert (await index.generation()).startswith("citewire_2_test_")
        await index.aclose()
        with pytest.raises(ValueError, match="EMBEDDING_MODEL"):
            await open_index(config, data_dir, dimensions=3, embedder="test")
        rebuild = await open_rebuild(config, data_dir, dimensions=3, embedder="test")
        await rebuild.publish()
        await rebuild.aclose()
        index = await open_index(config, data_dir, dimensions=3, embedder="test")
        assert (await index.generation()).startswith("citewire_3_test_")
        await index.aclose()


async def test_the_index_lies_in_the_data_directory_or_where_the_url_says(data_dir: Path) -> None:
    for config, expected in (
        (KnowledgeConfig(index_url="  "), data_dir / "index"),
        (KnowledgeConfig(index_url=str(data_dir / "elsewhere")), data_dir / "elsewhere"),
    ):
        index = await open_index(config, data_dir, dimensions=2, embedder="test")
        await index.aclose()
        assert (expected / "chunks.lance").is_dir()
