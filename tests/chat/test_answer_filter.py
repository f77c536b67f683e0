"""The answer filter: citations that resolve, no reasoning, the same for every chunking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.chat.answer_filter import AnswerFilter


def run(*chunks: str, known: int = 3) -> str:
    filter_ = AnswerFilter(lambda number: 1 <= number <= known)
    return "".join([filter_.feed(chunk) for chunk in chunks]) + filter_.flush()


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("Yes [1][2].", "Yes [1][2]."),
        ("Yes [7].", "Yes ."),
        ("Yes [0].", "Yes ."),
        ("Yes [1,2].", "Yes [1][2]."),
        ("Yes [1, 9].", "Yes [1]."),
        ("Yes [ID:3].", "Yes [3]."),
        ("Yes [^1].", "Yes [1]."),
        ("Run `a[7]` now [2].", "Run `a[7]` now [2]."),
        ("```\na[7] = b[1]\n```\nSee [1] [8].", "```\na[7] = b[1]\n```\nSee [1] ."),
        ("An [aside], [1", "An [aside], [1"),
        ("[123456789012] [1]", "[123456789012] [1]"),
        ("[[1]]", "[[1]]"),
        ("[link](x) and 【1】", "[link](x) and 【1】"),
    ],
)
def test_i07_every_number_names_a_chunk_or_goes(text: str, sent: str) -> None:
    assert run(text) == sent


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("<think>why [1]</think>Because [1].", "Because [1]."),
        ("<THINK>a</Think>b", "b"),
        ("<think>never closed", ""),
        ("orphan</think> stays", "orphan stays"),
        ("<think>a<think>b</think>c</think>d", "d"),
        ("`<think>` is a tag", "`<think>` is a tag"),
        ("if a < b and b <t", "if a < b and b <t"),
        ("<think>only</think>", ""),
    ],
)
def test_e04_reasoning_is_never_sent(text: str, sent: str) -> None:
    assert run(text) == sent


PARTS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "[1]",
        "[9]",
        "[1,2]",
        "[^1]",
        "[ID:2]",
        "`",
        "```",
        "\n",
        "a < b",
        "[",
        "]",
        "x",
        " ",
        "，",
    ]
)


@given(st.lists(PARTS, max_size=25), st.data())
def test_the_result_does_not_depend_on_the_chunking(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    chunks = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(*chunks) == run(text) == run(*text)
