"""Words and sentences."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.infra.analyze import (
    MAX_TERM_CHARS,
    analyze,
    analyze_query,
    query_terms,
    sentence_spans,
    sentences,
    terms,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Pumps were running", ["pump", "were", "run"]),
        ("Newton's laws don't", ["newton", "law", "don"]),
        ("Café MÜLLER", ["cafe", "muller"]),
        ("ＡＢＣ１２３", ["abc123"]),
        ("well-known", ["well", "known"]),
        ("PPR-9087", ["ppr-9087", "ppr", "9087"]),
        ("v1.2.3", ["v1.2.3", "v1", "2", "3"]),
        ("ERR_0x80070005", ["err_0x80070005", "err", "0x80070005"]),
        (
            "550e8400-e29b-41d4-a716-446655440000",
            ["550e8400-e29b-41d4-a716-446655440000", "550e8400", "e29b", "41d4", "a716", "446655440000"],
        ),
        ("北京大学", ["北", "京", "大", "学", "北京", "京大", "大学"]),
        ("水", ["水"]),
        ("食べる", ["食", "食べ", "べる"]),
        ("ﾀﾜｰ", ["タワ", "ワー"]),
        ("수도권", ["수도", "도권"]),
        ("हिन्दी", ["हिन्दी"]),
        ("!?… 🎉 \u200b", []),
        ("", []),
    ],
)
def test_terms(text: str, expected: list[str]) -> None:
    assert terms(text) == expected
    assert analyze(text) == " ".join(expected)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("What is the capacity of pump P-12?", "capac pump p-12 p 12"),
        ("who are they", ""),
        ("的了吗", ""),
        ("目的", "目 目的"),
        ("🎉 ... !!!", ""),
        ("don't", ""),
    ],
)
def test_query_drops_what_says_nothing(query: str, expected: str) -> None:
    assert analyze_query(query) == expected


@given(st.text(max_size=300))
def test_terms_hold_no_space_and_have_a_bounded_length(text: str) -> None:
    for term in terms(text):
        assert term
        assert len(term.split()) == 1
        assert len(term) <= MAX_TERM_CHARS
    assert set(query_terms(text)) <= set(terms(text))


def test_analysis_is_the_same_in_many_threads() -> None:
    text = " ".join(f"running{chr(97 + n % 26)}ness nationally flies{chr(97 + n % 7)}" for n in range(3000))
    expected = analyze(text)
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(analyze(text))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Dr. Smith left the U.S. in 1999. He said no. Then?",
            ["Dr. Smith left the U.S. in 1999.", "He said no.", "Then?"],
        ),
        ('He said "Stop!" Then he left (at once.) End', ['He said "Stop!"', "Then he left (at once.)", "End"]),
        (
            "See Fig. 3 and No. 7, i.e. both. Version 3.5 is out.",
            ["See Fig. 3 and No. 7, i.e. both.", "Version 3.5 is out."],
        ),
        ("这是第一句。“第二句！”第三句？第四", ["这是第一句。", "“第二句！”", "第三句？", "第四"]),
        ("# Title\nOne line\ngoes on. Next.", ["# Title", "One line\ngoes on.", "Next."]),
        ("- one\n- two\n1. First\n2. Second", ["- one", "- two", "1. First", "2. Second"]),
        ("| a | b |\n|---|---|\n| 1 | 2 |", ["| a | b |", "|---|---|", "| 1 | 2 |"]),
        ("No stop\n\nNew paragraph", ["No stop", "New paragraph"]),
        ("  \n\t", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.text(alphabet=st.sampled_from("aB1 .!?\n\t#|-*。！”\"')("), max_size=200))
def test_sentences_are_verbatim_and_lose_nothing(text: str) -> None:
    spans = sentence_spans(text)
    position = 0
    for start, end in spans:
        assert position <= start < end
        assert not text[position:start].strip()
        assert text[start:end] == text[start:end].strip()
        position = end
    assert not text[position:].strip()


@pytest.mark.parametrize("unit", [".", "\n", "a_", "\n ", "。", "#", "a.", " ", "1-", "\u0301"])
def test_long_runs_are_analysed_in_linear_time(unit: str) -> None:
    text = unit * (400_000 // len(unit)) + "x"
    assert sentences(text)
    assert terms(text)
