"""Every text for people is there in both languages, and for every code."""

import re
from pathlib import Path
from string import Formatter

import pytest

import backend
from backend.catalogue import _TEXTS, choose_language, say
from backend.errors import EVENT_CODES, HTTP_CODES

SOURCES = sorted(Path(backend.__file__).parent.rglob("*.py"))
HAN = re.compile(r"[\u4e00-\u9fff]")


def places(template: str) -> list[str]:
    return sorted(name for _, name, _, _ in Formatter().parse(template) if name is not None)


@pytest.mark.parametrize("key", sorted(_TEXTS))
def test_a_text_is_there_in_english_and_chinese_with_the_same_places(key: str) -> None:
    english, chinese = _TEXTS[key]
    assert english.strip()
    assert not HAN.search(english)
    assert HAN.search(chinese)
    assert places(english) == places(chinese)
    assert all(name.isidentifier() for name in places(english))


@pytest.mark.parametrize("code", sorted(HTTP_CODES.keys() | EVENT_CODES))
def test_every_error_code_has_a_text_without_places(code: str) -> None:
    assert places(_TEXTS[code][0]) == []


def test_every_text_that_the_program_says_is_in_the_catalogue() -> None:
    said = {key for source in SOURCES for key in re.findall(r'\bsay\(\s*"(\w+)"', source.read_text())}
    assert len(said) >= 10
    assert said <= _TEXTS.keys()


def test_values_are_never_read_as_templates() -> None:
    assert say("step_recalled", "zh", count="{count} {x}") == "召回片段：{count} {x}"


@pytest.mark.parametrize(
    ("header", "language"),
    [
        (None, "en"),
        ("", "en"),
        ("zh", "zh"),
        ("zh-Hans-CN, en;q=0.9", "zh"),
        ("en-GB, zh;q=0.8", "en"),
        ("de, zh;q=0.5", "zh"),
        ("zh;q=0", "en"),
        ("zh;q=x, fr", "en"),
        ("*", "en"),
    ],
)
def test_the_language_asked_for(header: str | None, language: str) -> None:
    assert choose_language(header) == language
