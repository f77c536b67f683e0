"""Pages to chunks of three levels."""

from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.knowledge.chunk import (
    LARGE_TOKENS,
    LEAF_MAX_TOKENS,
    LEAF_MIN_TOKENS,
    MIDDLE_TOKENS,
    NewChunk,
    chunk_pages,
)
from backend.knowledge.parse import Page

VERSION = UUID("00000000-0000-7000-8000-000000000001")


def words(text: str) -> int:
    return len(text.split())


def cut(*texts: str, numbered: bool = True) -> list[NewChunk]:
    pages = [Page(n if numbered else None, text) for n, text in enumerate(texts, start=1)]
    return chunk_pages(pages, VERSION, words)


def of_level(chunks: list[NewChunk], level: int) -> list[NewChunk]:
    return [chunk for chunk in chunks if chunk.level == level]


def prose(sentences: int, mark: str = "w") -> str:
    return " ".join(f"Sentence {mark}{n} has exactly eight words in it." for n in range(sentences))


def test_levels_are_a_tree_with_bounded_sizes() -> None:
    chunks = cut(*(prose(200, f"p{page}s") for page in range(4)))
    by_id = {chunk.id: chunk for chunk in chunks}
    for level, limit in ((1, LARGE_TOKENS), (2, MIDDLE_TOKENS), (3, LEAF_MAX_TOKENS + LEAF_MIN_TOKENS)):
        found = of_level(chunks, level)
        assert [chunk.ordinal for chunk in found] == list(range(len(found)))
        assert all(words(chunk.text) <= limit for chunk in found)
    for chunk in chunks:
        if chunk.level == 1:
            assert (chunk.parent_id, chunk.root_id) == (None, None)
        else:
            assert chunk.parent_id is not None
            assert chunk.root_id is not None
            assert by_id[chunk.parent_id].level == chunk.level - 1
            assert by_id[chunk.root_id].level == 1
            assert chunk.text in by_id[chunk.parent_id].text
    assert 4 < len(of_level(chunks, 1)) < len(of_level(chunks, 2)) < len(of_level(chunks, 3))


@pytest.mark.parametrize("level", [1, 2, 3])
def test_no_chunk_crosses_a_page(level: int) -> None:
    chunks = cut("Alpha ends here.", "Beta starts here.")
    assert [(chunk.page_number, chunk.text) for chunk in of_level(chunks, level)] == [
        (1, "Alpha ends here."),
        (2, "Beta starts here."),
    ]


def test_heading_paths_are_kept_over_pages() -> None:
    long = prose(8)
    leaves = of_level(cut(f"# Pumps\n\n{long}\n\n## Repair ##\n\n{long}", f"{long}\n\n# Valves\n\n{long}"), 3)
    assert [leaf.heading for leaf in leaves] == ["Pumps", "Pumps > Repair", "Pumps > Repair", "Valves"]
    assert leaves[1].text.startswith("## Repair ##\n\nSentence")
    assert leaves[2].indexed_text == f"Pumps > Repair\n{leaves[2].text}"


def test_a_hash_in_a_code_fence_is_no_heading() -> None:
    leaves = of_level(cut("# Setup\n\n```\n# not a heading\nmake run\n```\n\nDone."), 3)
    assert {leaf.heading for leaf in leaves} == {"Setup"}


def test_small_sections_stay_together() -> None:
    leaves = of_level(cut("# A\n\nOne.\n\n# B\n\nTwo.\n\n# C\n\nThree."), 3)
    assert [(leaf.text, leaf.heading) for leaf in leaves] == [("# A\n\nOne.\n\n# B\n\nTwo.\n\n# C\n\nThree.", None)]


def test_small_sections_share_the_heading_above_them() -> None:
    leaves = of_level(cut("# Pumps\n\n## A\n\nOne.\n\n## B\n\nTwo."), 3)
    assert [leaf.heading for leaf in leaves] == ["Pumps"]


def test_a_leaf_that_leaves_its_section_has_the_heading_it_begins_under() -> None:
    leaves = of_level(cut(f"# Pumps\n\n{prose(16)}\n\n{prose(5, 'x')}\n\n# Doors\n\nOpen."), 3)
    assert [leaf.heading for leaf in leaves] == ["Pumps", "Pumps"]
    assert leaves[1].text.endswith("# Doors\n\nOpen.")


def test_a_small_rest_joins_the_leaf_before() -> None:
    leaves = of_level(cut(prose(18)), 3)
    assert [words(leaf.text) for leaf in leaves] == [144]


def test_text_is_cut_as_it_stands() -> None:
    text = "First  line\nsecond line.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- item"
    assert [leaf.text for leaf in of_level(cut(text, numbered=False), 3)] == [text]
    assert of_level(cut(text, numbered=False), 3)[0].page_number is None


def test_an_endless_sentence_is_cut() -> None:
    chunks = chunk_pages([Page(1, "x" * 50_000)], VERSION, len)
    leaves = of_level(chunks, 3)
    assert "".join(leaf.text for leaf in leaves) == "x" * 50_000
    assert all(len(leaf.text) <= LEAF_MAX_TOKENS for leaf in leaves)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text(alphabet=st.sampled_from("ab. \n#`|-。水！x"), max_size=600)
        .map(lambda text: text.replace("|-", "|x"))  # the header of a cut table is repeated
        .filter(lambda text: text.strip() != ""),
        min_size=1,
        max_size=4,
    )
)
def test_nothing_is_lost_and_the_same_pages_give_the_same_chunks(texts: list[str]) -> None:
    chunks = cut(*texts)
    assert chunks == cut(*texts)
    squeeze = lambda text: "".join(text.split())  # noqa: E731
    for level in (1, 2, 3):
        assert squeeze("".join(chunk.text for chunk in of_level(chunks, level))) == squeeze("".join(texts))
    assert len({chunk.id for chunk in chunks}) == len(chunks)
    other = chunk_pages([Page(1, text) for text in texts], uuid4(), words)
    assert not {chunk.id for chunk in chunks} & {chunk.id for chunk in other}


def table(rows: int, columns: int = 4) -> str:
    header = "| " + " | ".join(f"Column{n}" for n in range(columns)) + " |\n" + "|" + " --- |" * columns
    body = ["| " + " | ".join(f"row{row}cell{n}" for n in range(columns)) + " |" for row in range(rows)]
    return "\n".join([header, *body])


@pytest.mark.parametrize("before", [1, 4, 9])
def test_h04_a_table_that_fits_a_leaf_is_not_torn(before: int) -> None:
    small = table(15)
    assert LEAF_MAX_TOKENS - 8 < words(small) <= LEAF_MAX_TOKENS
    leaves = of_level(cut(f"# Parts\n\n{prose(before)}\n\n{small}\n\n{prose(9)}"), 3)
    assert [leaf.text for leaf in leaves if "cell" in leaf.text] == [small]


def test_h04_a_heading_stays_with_its_table() -> None:
    leaves = of_level(cut(f"{prose(12)}\n\n# Parts\n\n{table(15)}"), 3)
    assert leaves[-1].text == f"# Parts\n\n{table(15)}"


@pytest.mark.parametrize("level", [1, 2, 3])
def test_h04_a_larger_table_is_cut_at_rows_and_repeats_its_header(level: int) -> None:
    large = table(400)
    header, body = large.splitlines()[:2], large.splitlines()[2:]
    parts = [chunk.text.splitlines() for chunk in of_level(cut(f"# Parts\n\n{large}"), level)]
    assert parts[0][:2] == ["# Parts", ""]
    parts[0] = parts[0][2:]
    assert len(parts) > 2
    assert all(part[:2] == header for part in parts)
    assert [row for part in parts for row in part[2:]] == body


def test_h04_leaves_of_a_cut_table_are_no_larger_than_others() -> None:
    leaves = of_level(cut(table(400)), 3)
    assert all(words(leaf.text) <= LEAF_MAX_TOKENS + LEAF_MIN_TOKENS for leaf in leaves)


def test_a_table_header_as_large_as_a_leaf_is_not_repeated() -> None:
    leaves = of_level(cut(table(30, columns=40)), 3)
    assert sum("Column0" in leaf.text for leaf in leaves) == 1


def test_a_code_fence_that_fits_a_leaf_is_not_torn() -> None:
    code = (
        "```python\n# not a heading\n\n"
        + "\n".join(f"call_number_{n}(one, two) # ends. Here" for n in range(20))
        + "\n```"
    )
    assert words(code) <= LEAF_MAX_TOKENS
    leaves = of_level(cut(f"{prose(12)}\n\n{code}\n\n{prose(12)}"), 3)
    assert [leaf.text for leaf in leaves if "call_number" in leaf.text] == [code]


def test_a_larger_code_fence_is_cut_between_lines() -> None:
    code = "```\n" + "\n".join(f"call_number_{n}(one, two, three) # all. Done" for n in range(200)) + "\n```"
    leaves = of_level(cut(code), 3)
    assert len(leaves) > 3
    assert [line for leaf in leaves for line in leaf.text.splitlines()] == code.splitlines()
