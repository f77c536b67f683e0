"""Questions that are no sentence, or far more than one: each finds its passage, or honestly nothing."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.infra.files import make_directories
from backend.knowledge.config import KnowledgeConfig
from backend.knowledge.index.base import ChunkIndex
from backend.knowledge.index.factory import open_index
from backend.knowledge.index.memory import MemoryChunkIndex
from backend.knowledge.service import MAX_QUERY_CHARS, MAX_QUERY_TOKENS, KnowledgeBase
from backend.schemas.auth import Principal
from tests.knowledge.conftest import GatedEmbedder

DOCUMENTS = {
    "order": "Order PPR-9087 was shipped on the third of May.",
    "order-2": "Order PPR-9078 was shipped on the fourth of May.",
    "error": "Error ERR_0x80070005 means that access to the folder was denied.",
    "error-2": "Error ERR_0x80070057 means that a parameter of the call is wrong.",
    "release": "Release v1.2.3 fixes the leak of the log reader.",
    "release-2": "Release v1.3.2 makes the log reader faster.",
    "device": "The device 550e8400-e29b-41d4-a716-446655440000 stands in hall four.",
    "device-2": "The device 550e8400-e29b-41d4-a716-446655440001 stands in hall five.",
    "mixed": "Der Sensor 温度传感器 TS-200 misst bis 350 °C, メーカーは日本の会社です。",
    "wide": "Ｍｏｄｅｌ　ＡＢＣ－１２３ には ｶﾞｽ ﾒｰﾀｰ が付いています。",
    "night": "The gate of the harbour is closed at night by the guard.",
    "birds": "Storks build their nests on the chimneys of the old town.",
    "tea": "西湖龙井茶产于杭州，清明前采摘的最为珍贵。",
    "cook": "Simmer the onions slowly until they are soft and golden.",
}
FILLER = "We spoke about many things of every day, of the weather and the way to work, and came to no end. "
CHINESE_FILLER = "我们谈了很多日常的事情，谈到天气和上班的路，没有得出什么结论。"


@pytest.fixture(params=["memory", "lance"])
async def odd_index(
    request: pytest.FixtureRequest, data_dir: Path, embedder: GatedEmbedder
) -> AsyncIterator[ChunkIndex]:
    make_directories(data_dir)
    index: ChunkIndex = MemoryChunkIndex(embedder.dimensions)
    if request.param == "lance":
        index = await open_index(KnowledgeConfig(), data_dir, dimensions=embedder.dimensions, embedder=embedder.name)
    yield index
    await index.aclose()


@pytest.fixture
async def odd(
    engine: AsyncEngine, odd_index: ChunkIndex, embedder: GatedEmbedder, data_dir: Path, alice: Principal
) -> KnowledgeBase:
    library = KnowledgeBase(engine, odd_index, embedder, KnowledgeConfig(), data_dir)
    for name, content in DOCUMENTS.items():
        await library.upload(alice, f"{name}.txt", content.encode())
    return library


async def first(library: KnowledgeBase, user: Principal, query: str) -> str | None:
    hits = (await library.recall(user.id, query, 5)).hits
    return hits[0].filename.removesuffix(".txt") if hits else None


FOUND = [
    ("PPR-9087", "order"),
    ("ppr 9087", "order"),
    ("Where is PPR-9078?", "order-2"),
    ("ERR_0x80070005", "error"),
    ("what does err_0x80070057 mean", "error-2"),
    ("v1.2.3", "release"),
    ("Is 1.3.2 faster?", "release-2"),
    ("550e8400-e29b-41d4-a716-446655440000", "device"),
    ("550E8400-E29B-41D4-A716-446655440001", "device-2"),
    ("温度传感器 TS-200 misst wie viel?", "mixed"),
    ("ＴＳ－２００", "mixed"),
    ("ABC-123", "wide"),
    ("ガスメーター", "wide"),
    ("ＰＰＲ－９０８７", "order"),
    ("ｖ１．２．３", "release"),
    ("西湖 tea 龙井 where", "tea"),
]


async def test_identifiers_mixed_scripts_and_wide_forms(odd: KnowledgeBase, alice: Principal) -> None:
    assert [(query, await first(odd, alice, query)) for query, _ in FOUND] == FOUND


NOTHING_SAID = ["the of and to", "is it?", "的了吗", "😀🎉", "👩‍👩‍👧‍👦", "!?…", "   ", "\u200b\u200b", "()[]{}*^~\"'\\"]


async def test_what_says_nothing_finds_nothing(odd: KnowledgeBase, alice: Principal) -> None:
    assert [(query, await first(odd, alice, query)) for query in NOTHING_SAID] == [(q, None) for q in NOTHING_SAID]


LONG = [
    ("{f}When do they shut the harbour entrance?{f}", FILLER, 12, "night"),
    ("{f}{f}When do they shut the harbour entrance?", FILLER, 60, "night"),
    ("When do they shut the harbour entrance?{f}{f}", FILLER, 12, "night"),
    ("{f}What does PPR-9087 say?{f}", FILLER, 30, "order"),
    ("{f}龙井茶什么时候采摘最好？{f}", CHINESE_FILLER, 20, "tea"),
]
"""Form, what fills it, how often, and the document that is meant."""


async def test_a_long_question_is_searched_as_a_whole(
    odd: KnowledgeBase, alice: Principal, embedder: GatedEmbedder
) -> None:
    for form, filler, times, expected in LONG:
        query = form.format(f=filler * times)
        assert embedder.count_tokens(query) > 512, "longer than the window of the embedder"
        hits = (await odd.recall(alice.id, query, 2)).hits
        assert expected in {hit.filename.removesuffix(".txt") for hit in hits}, form


@pytest.mark.parametrize("filler", [FILLER, CHINESE_FILLER, "x" * 50, "水"], ids=["en", "zh", "one word", "one sign"])
async def test_what_is_embedded_is_bounded(
    library: KnowledgeBase, alice: Principal, embedder: GatedEmbedder, monkeypatch: pytest.MonkeyPatch, filler: str
) -> None:
    embedded: list[str] = []

    async def noting(text: str) -> list[float]:
        embedded.append(text)
        return [1.0] + [0.0] * (embedder.dimensions - 1)

    monkeypatch.setattr(embedder, "embed_query", noting)
    query = "beginning of it " + filler * 3_000 + " and its end"
    await library.recall(alice.id, query, 5)
    (text,) = embedded
    assert text.startswith("beginning of it")
    assert text.endswith("and its end")
    assert embedder.count_tokens(text) <= MAX_QUERY_TOKENS * 1.1
    assert len(text) <= MAX_QUERY_CHARS
