"""What of the Milvus adapter needs no server; what it does with one is in the contract of every index."""

import re

from hypothesis import given
from hypothesis import strategies as st

from backend.infra.analyze import analyze
from backend.knowledge.index.milvus import MAX_WORDS_BYTES, encode_words

SCRIPTS = st.sampled_from(
    ["pump", "zz", "zz7a", "PPR-9087", "é", "ß", "İ", "三号泵", "ポンプ", "펌프", "ปั๊ม", "नमस्ते", "קֶ", "𠀀"]
)
TEXT = st.lists(st.text(max_size=12) | SCRIPTS, max_size=12).map(" ".join)
KEPT = re.compile(r"[a-z0-9]+")
"""What the server's ``standard`` analyzer neither splits nor changes."""


@given(TEXT)
def test_words_reach_the_server_one_by_one_as_what_its_analyzer_keeps(text: str) -> None:
    words = analyze(text).split()
    coded = encode_words(" ".join(words)).split()
    assert len(coded) == len(words)
    assert all(KEPT.fullmatch(word) for word in coded)


@given(TEXT, TEXT)
def test_no_two_words_become_the_same(left: str, right: str) -> None:
    words = {*analyze(left).split(), *analyze(right).split(), "zz", "zz7a7a", "c3a9", "zzc3a9", "é"}
    assert len({encode_words(word) for word in words}) == len(words)


@given(TEXT)
def test_a_word_of_a_query_is_coded_as_in_the_passage(text: str) -> None:
    words = analyze(text).split()
    assert encode_words(" ".join(words)).split() == [encode_words(word) for word in words]


def test_what_is_beyond_the_field_is_left_out_at_a_word() -> None:
    word = encode_words("é")
    coded = encode_words("é " * MAX_WORDS_BYTES)
    assert len(coded) <= MAX_WORDS_BYTES
    assert set(coded.split()) == {word}
    assert len(coded) > MAX_WORDS_BYTES - 2 * len(word)
