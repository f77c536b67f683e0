from dataclasses import replace

from backend.rag.retrieve import Candidate, candidates, fuse, in_files
from tests.rag.library import leaf


def found(*names: str) -> list[Candidate]:
    return candidates([replace(leaf(name), rank=rank, score=1 / rank) for rank, name in enumerate(names, start=1)])


def texts(chunks: list[Candidate]) -> list[str]:
    return [chunk.text for chunk in chunks]


def test_one_recall_stays_as_it_is():
    assert fuse([], found("a", "b")) == found("a", "b")


def test_what_both_found_comes_first_then_by_rank_the_later_one_before():
    fused = fuse(found("a", "b", "c"), found("x", "b", "y"))
    assert texts(fused) == ["b", "x", "a", "y", "c"]
    assert [chunk.rank for chunk in fused] == [1, 2, 3, 4, 5]


def test_a_chunk_of_both_keeps_the_best_of_each():
    earlier = [replace(found("a")[0], score=0.9, similarity=0.5, arms={"dense": 1, "sparse": 7})]
    later = [replace(found("a")[0], score=0.2, similarity=0.8, arms={"sparse": 2})]
    (chunk,) = fuse(earlier, later)
    assert (chunk.score, chunk.similarity, chunk.arms) == (0.9, 0.8, {"dense": 1, "sparse": 2})
    (alone,) = fuse([replace(earlier[0], similarity=None)], [replace(later[0], similarity=None)])
    assert alone.similarity is None


def test_files_narrow_unless_nothing_is_left():
    chunks = [replace(chunk, filename=f"{chunk.text}.pdf") for chunk in found("a", "b")]
    assert texts(in_files(chunks, ["the second", " B.PDF "])) == ["b"]
    assert in_files(chunks, ["c.pdf"]) == chunks
    assert in_files(chunks, []) == chunks
