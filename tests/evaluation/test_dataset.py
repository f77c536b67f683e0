"""Data sets that are read, and the line that says what is wrong with one."""

import json
from pathlib import Path
from typing import Any

import pytest

from backend.evaluation.dataset import DatasetError, load_dataset

PASSAGES = [
    {"id": "p1", "lang": "en", "text": "The pump delivers 400 litres."},
    {"id": "p2", "lang": "zh", "text": "水泵每小时四百升。"},
]
QUESTIONS: list[dict[str, Any]] = [
    {"id": "q1", "lang": "en", "question": "How many litres?", "passage_id": "p1", "answer": "400", "more": True},
    {"id": "q2", "lang": "zh", "question": "多少升？", "relevant": {"p2": 2, "p1": 0}, "answer": ["四百", "400"]},
]


class Files:
    """The two files of a data set."""

    def __init__(self, directory: Path) -> None:
        self.passages = directory / "passages.jsonl"
        self.questions = directory / "questions.jsonl"
        self.write(PASSAGES, QUESTIONS)

    def write(self, passages: list[Any], questions: list[Any]) -> None:
        for path, items in ((self.passages, passages), (self.questions, questions)):
            lines = [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in items]
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_grades_right_passages_and_answers(files: Files):
    one, graded = load_dataset(files.passages, files.questions).questions
    assert (one.grades, one.right_ids, one.answers) == ({"p1": 1}, {"p1"}, ["400"])
    assert (graded.grades, graded.right_ids, graded.answers) == ({"p2": 2, "p1": 0}, {"p2"}, ["四百", "400"])


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_do_no_harm(files: Files):
    files.passages.write_bytes(b"\xef\xbb\xbf" + files.passages.read_bytes().replace(b"\n", b"\r\n\r\n"))
    assert [passage.id for passage in load_dataset(files.passages, files.questions).passages] == ["p1", "p2"]


def test_a_language_keeps_what_has_it(files: Files):
    files.write(PASSAGES, [QUESTIONS[0], {**QUESTIONS[1], "relevant": {"p2": 1}}])
    chosen = load_dataset(files.passages, files.questions, lang="zh")
    assert ([passage.id for passage in chosen.passages], [question.id for question in chosen.questions]) == (
        ["p2"],
        ["q2"],
    )


@pytest.mark.parametrize(("sample", "ids"), [(1, [0]), (2, [0, 5]), (4, [0, 2, 5, 7]), (10, list(range(10)))])
def test_a_sample_is_spread_evenly(files: Files, sample: int, ids: list[int]):
    files.write(PASSAGES, [{**QUESTIONS[0], "id": str(number)} for number in range(10)])
    chosen = load_dataset(files.passages, files.questions, sample=sample)
    assert [int(question.id) for question in chosen.questions] == ids


@pytest.mark.parametrize(
    ("passages", "questions", "line"),
    [
        ([], QUESTIONS, "passages.jsonl: the file is empty"),
        (PASSAGES, ["", "  "], "questions.jsonl: the file is empty"),
        ([PASSAGES[0], '{"id": "p2", '], QUESTIONS, "passages.jsonl:2: Invalid JSON"),
        ([PASSAGES[0], "[1]"], QUESTIONS, "passages.jsonl:2: Input should be an object"),
        ([{"id": "p1"}], QUESTIONS, "passages.jsonl:1: text: Field required"),
        ([{"id": "p1", "text": " \u200b\n"}], QUESTIONS, "passages.jsonl:1: text is empty"),
        ([*PASSAGES, PASSAGES[0]], QUESTIONS, "passages.jsonl:3: the id 'p1' is there twice"),
        (PASSAGES, [QUESTIONS[0], "", QUESTIONS[0]], "questions.jsonl:3: the id 'q1' is there twice"),
        (PASSAGES, [{"id": "q", "question": "?", "passage_id": "p9"}], "question 'q' names 'p9', which is no passage"),
        (PASSAGES, [{"id": "q", "question": "?", "relevant": {"p1": 0}}], "questions.jsonl:1: relevant names no"),
        (PASSAGES, [{"id": "q", "question": "?", "relevant": {"p1": -1}}], "questions.jsonl:1: relevant.p1: "),
        (PASSAGES, [{"id": "q", "question": "?"}], "questions.jsonl:1: either passage_id or relevant must be given"),
        (PASSAGES, [{"id": "q", "question": "", "passage_id": "p1"}], "questions.jsonl:1: question: "),
    ],
)
def test_what_is_wrong_is_one_line_that_names_the_place(files: Files, passages: Any, questions: Any, line: str):
    files.write(passages, questions)
    with pytest.raises(DatasetError) as caught:
        load_dataset(files.passages, files.questions)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(files: Files, tmp_path: Path):
    with pytest.raises(DatasetError, match=r"gone\.jsonl: No such file"):
        load_dataset(tmp_path / "gone.jsonl", files.questions)
    with pytest.raises(DatasetError, match="Is a directory"):
        load_dataset(tmp_path, files.questions)
    files.questions.write_bytes(b'{"id": "\xff"}')
    with pytest.raises(DatasetError, match=r"questions\.jsonl: not UTF-8 text"):
        load_dataset(files.passages, files.questions)


def test_a_language_that_does_not_fit(files: Files):
    with pytest.raises(DatasetError, match=r"passages\.jsonl: nothing has the lang 'fr'"):
        load_dataset(files.passages, files.questions, lang="fr")
    with pytest.raises(DatasetError, match="question 'q2' names 'p1', which is no passage of the lang 'zh'"):
        load_dataset(files.passages, files.questions, lang="zh")
