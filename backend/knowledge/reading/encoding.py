"""Bytes of a text file to text, or the refusal ``encoding_unknown``: never mojibake (H05).

A byte order mark or valid UTF-8 decides. Otherwise it is measured, for each encoding that the bytes could be in, how
many characters of that reading are ordinary in the language that is written so: a wrong reading of Chinese is full of
rare characters. Between readings that are equally good charset-normalizer decides by the language; when it cannot,
there is no answer.
"""

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from charset_normalizer import from_bytes

from backend.knowledge.reading.base import Refused

BOMS = (
    (b"\xef\xbb\xbf", "utf-8"),
    (b"\xff\xfe\x00\x00", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32-be"),
    (b"\xff\xfe", "utf-16-le"),
    (b"\xfe\xff", "utf-16-be"),
)
SAMPLE_BYTES = 64 * 1024
MAX_BAD_SHARE = 0.01
"""More replaced or control characters than this in a guessed encoding: it was the wrong guess."""
MAX_CONTROL_SHARE = 0.1
"""More control characters than this: not a text."""
MIN_ORDINARY_SHARE = 0.75
MIN_MARGIN = 0.05
"""How much better than any other reading the best one has to be."""

_BAD = re.compile("[\x01-\x08\x0e-\x1f\x7f-\x9f\ufffd\ue000-\uf8ff]")
_TERMINAL = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\))")
_CONTROL = re.compile("[\x01-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]")
_NOT_ASCII = re.compile("[^\x00-\x7f]")
_MARKS = re.compile(
    "[\u2010-\u2026\u2030-\u203e\u20ac\u2190-\u21ff\u2460-\u24ff\u3000-\u3020\u30fb\uff01-\uff5e°±·×÷§©®²³µ]"
)
_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa\u30fc]")
_HANGUL = re.compile("[\uac00-\ud7a3]")
_LONE_HAN = re.compile("(?<=[a-z])[\u3400-\u9fff](?![\u3040-\u9fff])|(?<![\u3040-\u9fff])[\u3400-\u9fff](?=[a-z])")
"""One Chinese character stuck to a Latin word: an accented letter that was read wrongly."""
_WEST = frozenset("àâäáãåæçéèêëíìîïñóòôöõøœúùûüýÿßÀÂÄÁÃÅÆÇÉÈÊËÍÌÎÏÑÓÒÔÖÕØŒÚÙÛÜÝŠšŽž«»¿¡‘’“”–—…€£°§ºª\xa0•™©®")
_EAST = frozenset("ąćęłńóśźżĄĆĘŁŃÓŚŹŻáčďéěíňřšťúůýžÁČĎÉĚÍŇŘŠŤÚŮÝŽőűŐŰäöüßÄÖÜâîăşţÂÎĂŞŢ‘’“”„–—…§°\xa0«»")
_RUSSIAN = re.compile("(?<![a-zA-Z])(?:[а-яё]|(?<![а-яёА-ЯЁ])[А-ЯЁ]|[«»–—…“”„№\xa0])(?![a-zA-Z])")
_SIGN_IN_WORD = re.compile("(?<=[a-z])[¹²³ºª¿½¼¾£µ¶](?=[a-z])")
_RUN_OF_LETTERS = 5
"""So many accented letters in a row are no word of a language that is written in Latin letters."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """``score`` is the share of ordinary characters."""

    encoding: str
    text: str
    score: float


def _lead(character: str, encoding: str) -> int:
    try:
        encoded = character.encode(encoding)
    except UnicodeEncodeError:
        return 0
    return encoded[0] if len(encoded) == 2 else 0


def _share(text: str, ordinary: Callable[[str], bool]) -> float:
    """Of the characters that are not ASCII, the share that is ordinary; each different one is looked up once."""
    characters = _NOT_ASCII.findall(_LONE_HAN.sub("\ufffd", text))
    known = {character: ordinary(character) or bool(_MARKS.match(character)) for character in set(characters)}
    return sum(known[character] for character in characters) / max(1, len(characters))


def _simplified(text: str) -> float:
    """The 3,755 frequent characters of GB 2312 have lead bytes up to 0xD7; Korean in EUC uses none above 0xC8."""
    leads = [_lead(character, "gb2312") for character in _NOT_ASCII.findall(text)]
    narrow = len(set(leads)) >= 5 and not any(0xC8 < lead <= 0xF7 for lead in leads)
    return _share(text, lambda character: 0xB0 <= _lead(character, "gb2312") <= 0xD7) - (0.3 if narrow else 0)


def _traditional(text: str) -> float:
    return _share(text, lambda character: 0xA4 <= _lead(character, "big5") <= 0xC6)


def _japanese(text: str) -> float:
    kanji = _share(text, lambda c: bool(_KANA.match(c)) or 0xB0 <= _lead(c, "euc_jp") <= 0xCF)
    return kanji if _KANA.search(text) else kanji - 0.2


def _korean(text: str) -> float:
    few = len(_HANGUL.findall(text)) < 8
    return _share(text, lambda c: bool(_HANGUL.match(c)) and _lead(c, "euc_kr") > 0) - (0.3 if few else 0)


def _latin(letters: frozenset[str]) -> Callable[[str], float]:
    def score(text: str) -> float:
        if re.search(f"[À-ſ]{{{_RUN_OF_LETTERS}}}", text) or len(_NOT_ASCII.findall(text)) > len(text) / 2:
            return 0.0
        return _share(_SIGN_IN_WORD.sub("\ufffd", text), letters.__contains__)

    return score


def _russian(text: str) -> float:
    return len(_RUSSIAN.findall(text)) / max(1, len(_NOT_ASCII.findall(text)))


def _wide(text: str) -> float:
    return max(_simplified(text), _traditional(text), _japanese(text), _korean(text), _russian(text))


_ORDINARY: dict[str, Callable[[str], float]] = {
    "gb18030": _simplified,
    "big5hkscs": _traditional,
    "cp932": _japanese,
    "euc_jp": _japanese,
    "cp949": _korean,
    "cp1252": _latin(_WEST),
    "cp1250": _latin(_EAST),
    "cp1251": _russian,
    "koi8_r": _russian,
    "utf_16_le": _wide,
    "utf_16_be": _wide,
}
"""Each encoding that is tried, and how ordinary a text in it looks (0 to 1)."""


def _bad_share(text: str) -> float:
    return sum(1 for _ in _BAD.finditer(text)) / max(1, len(text))


def _readings(sample: bytes) -> list[_Reading]:
    """The readings of the sample that hold hardly a broken character, best first."""
    texts = {encoding: sample.decode(encoding, "replace") for encoding in _ORDINARY}
    readings = [
        _Reading(encoding, text, _ORDINARY[encoding](text))
        for encoding, text in texts.items()
        if _bad_share(text[:-1]) <= MAX_BAD_SHARE  # the last character of a sample may be half of one
    ]
    return sorted(readings, key=lambda item: -item.score)  # stable: the first named of equal ones


def detect(data: bytes) -> str | None:
    """The encoding of ``data``, which is not UTF-8, or ``None`` when no reading or more than one is convincing."""
    sample = data[:SAMPLE_BYTES]
    readings = _readings(sample)
    if not readings or readings[0].score < MIN_ORDINARY_SHARE:
        return None
    best = readings[0]
    tied = [item.encoding for item in readings if item.text != best.text and item.score > best.score - MIN_MARGIN]
    return _by_language(sample, [best.encoding, *tied]) if tied else best.encoding


def _by_language(sample: bytes, encodings: list[str]) -> str | None:
    """The encoding in which charset-normalizer recognizes a language best.

    When it recognizes none: cp1252 before its kin of Eastern Europe, which differs in few letters, else ``None``.
    """
    matches = sorted(from_bytes(sample, cp_isolation=encodings), key=lambda match: -match.coherence)
    if matches and matches[0].coherence > (matches[1].coherence if len(matches) > 1 else 0):
        return matches[0].encoding
    return "cp1252" if set(encodings) == {"cp1252", "cp1250"} else None


def _marked(data: bytes) -> str | None:
    for bom, encoding in BOMS:
        if data.startswith(bom):
            return data[len(bom) :].decode(encoding, "replace")
    if data.count(0) > len(data) / 5:  # UTF-16 without a mark: every other byte of Latin text is zero
        return data.decode("utf-16-be" if data[::2].count(0) > data[1::2].count(0) else "utf-16-le", "replace")
    return None


def decode(data: bytes, declared: str | None = None) -> str:
    """The text of ``data`` without control characters. ``declared`` is the encoding that the file names, if it does.

    Raises :class:`Refused` (``encoding_unknown``).
    """
    text = _marked(data)
    if text is None:
        with contextlib.suppress(UnicodeDecodeError):
            return without_controls(data.decode("utf-8"))
        text = data.decode("utf-8", "replace")
        if _bad_share(text) > MAX_BAD_SHARE:  # else UTF-8 with a few broken bytes
            text = _guessed(data, declared)
    if _bad_share(without_controls(text)) > MAX_BAD_SHARE:
        raise Refused("encoding_unknown")
    return without_controls(text)


def _guessed(data: bytes, declared: str | None) -> str:
    if declared is not None:
        with contextlib.suppress(LookupError, UnicodeDecodeError):
            return data.decode(declared)
    encoding = detect(data)
    if encoding is None:
        raise Refused("encoding_unknown")
    text = data.decode(encoding, "replace")
    if _bad_share(text) > MAX_BAD_SHARE:
        raise Refused("encoding_unknown")
    return text


def without_controls(text: str) -> str:
    """``text`` without terminal colours and control characters. Raises :class:`Refused` when it is made of them."""
    text = _TERMINAL.sub("", text)
    clean = _CONTROL.sub("", text).replace("\x85", "\n")
    if len(text) - len(clean) > MAX_CONTROL_SHARE * len(text):
        raise Refused("encoding_unknown")
    return clean
