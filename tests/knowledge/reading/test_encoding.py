"""Bytes to text: the right text or ``encoding_unknown``, never mojibake."""

from pathlib import Path

import pytest

from backend.knowledge.parse_worker import read
from backend.knowledge.reading.base import Limits, Refused
from backend.knowledge.reading.encoding import decode

LIMITS = Limits(10, 1000, 1_000_000)
CHINESE = "这是一个关于反应堆的中文文档。水泵的压力是三百千帕，阀门在夜间关闭。维护人员每周检查一次。"
TRADITIONAL = "這是一個關於反應堆的中文文檔。水泵的壓力是三百千帕，閥門在夜間關閉。維護人員每週檢查一次。"
JAPANESE = "これは日本語の文書です。ポンプの圧力は三百キロパスカルです。夜は弁を閉めます。"
KOREAN = "원자로의 냉각수는 네 대의 주펌프로 순환됩니다. 운전원은 밸브의 상태를 확인하고 일지에 서명해야 합니다."
FRENCH = "Le café coûte 30 € à l’hôtel, où l’été est déjà fini. Voilà la façade où naît le château."
GERMAN = "Die Kühlpumpe fördert täglich größere Mengen. Über die Änderung informieren wir früh."
RUSSIAN = "Реактор охлаждается четырьмя насосами. Оператор проверяет состояние клапанов при каждой смене."
FOUND = [
    ("utf-8", CHINESE),
    ("utf-8-sig", CHINESE),
    ("utf-16", CHINESE),
    ("utf-16-le", CHINESE),
    ("utf-16-be", CHINESE),
    ("utf-16-le", "Plain English without a mark."),
    ("utf-16-be", "Plain English without a mark."),
    ("utf-32", CHINESE),
    ("gbk", CHINESE),
    ("gbk", "水泵"),
    ("gbk", f"Log of pump 9\n2024-05-01 10:22:31 ERROR {CHINESE}\n2024-05-01 10:22:32 INFO ok\n"),
    ("gb18030", CHINESE + "𠮷"),
    ("gb18030", "姓名：𠮷田，部门：水泵车间。"),
    ("big5", TRADITIONAL),
    ("shift_jis", JAPANESE),
    ("euc_jp", JAPANESE),
    ("cp949", KOREAN),
    ("cp1252", FRENCH),
    ("cp1252", GERMAN),
    ("cp1251", RUSSIAN),
    ("koi8_r", RUSSIAN),
]
WIDE = [("gb18030", CHINESE), ("big5", TRADITIONAL), ("shift_jis", JAPANESE), ("utf-16-le", CHINESE)]
NARROW = [("cp1252", FRENCH), ("cp1252", GERMAN), ("cp1251", RUSSIAN)]


def decoded(data: bytes) -> str | None:
    try:
        return decode(data)
    except Refused as refused:
        assert refused.code == "encoding_unknown"
        return None


@pytest.mark.parametrize(("encoding", "text"), FOUND)
def test_h05_the_encoding_is_found(encoding: str, text: str) -> None:
    assert decode(text.encode(encoding)).removeprefix("\ufeff") == text


@pytest.mark.parametrize(("encoding", "text"), WIDE + NARROW)
@pytest.mark.parametrize("length", [6, 10, 20, 40])
def test_h05_every_part_of_a_text_is_right_or_refused(encoding: str, text: str, length: int) -> None:
    parts = [text[start : start + length] for start in range(len(text) - length)]
    results = [(part, decoded(part.encode(encoding))) for part in parts]
    assert [(part, result) for part, result in results if result not in {part, None}] == []
    assert sum(result is not None for _, result in results) >= len(parts) * (0.9 if length >= 20 else 0.5)


@pytest.mark.parametrize(
    "data",
    [
        "水泵的压力".encode()[1:11],
        "水泵的压力".encode()[:10].replace(b"\xe6", b"\xff"),
        b"\xe6\xb0\xff\xe6\xb3\xfe\xe7\x9a\x84\xe5",
        b"\x81\xfe\x82\xfd\x83\xfc\x84\xfb\x85\xfa",
        bytes(range(128, 256)) * 3,
        b"\xef\xbb\xbf" + CHINESE.encode("gbk"),
        b"\xff\xfe" + b"\x00\xd8" * 20,
        bytes(range(1, 32)) * 50 + b"\xff\x81" * 50,
    ],
)
def test_h05_what_is_no_text_is_refused(data: bytes) -> None:
    assert decoded(data) is None


def test_h05_a_few_broken_bytes_are_replaced_and_more_are_refused() -> None:
    broken = b"\xff\xfe\xfd"
    text = decode((CHINESE * 20).encode() + broken + CHINESE.encode())
    assert text == CHINESE * 20 + "\ufffd" * 3 + CHINESE
    assert decoded(CHINESE.encode() + broken + CHINESE.encode()) is None


def test_h05_what_was_replaced_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes((CHINESE * 20).encode() + b"\xff")
    assert read(path, "text", LIMITS).replaced == 1


def test_control_characters_and_terminal_colours_are_dropped() -> None:
    log = "\x1b[1;31mERROR\x1b[0m \x1b]0;title\x07the pump\x08 stopped\x7f\x9b\x85next\tline\f\n"
    assert decode(log.encode()) == "ERROR the pump stopped\nnext\tline\f\n"


def test_more_control_characters_than_text_are_no_text() -> None:
    assert decoded(b"abc" + b"\x01\x02" * 10) is None


def test_a_declared_encoding_decides_where_bytes_allow_it() -> None:
    polish = "ćma"
    assert decode(polish.encode("cp1250"), "windows-1250") == polish
    assert decode(CHINESE.encode(), "gbk") == CHINESE
    assert decode(CHINESE.encode("gbk"), "no-such-encoding") == CHINESE


def test_h05_a_web_page_names_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "content"
    path.write_bytes('<html><head><meta charset="gb2312"><title>阀</title></head><p>水</p></html>'.encode("gbk"))
    assert [part.text for part in read(path, "html", LIMITS).parts] == ["# 阀\n\n水"]
