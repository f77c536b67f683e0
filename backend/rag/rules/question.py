"""What a question is about and what kind of answer it wants, read from its words alone; English and Chinese."""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal

from backend.catalogue import Language
from backend.infra.analyze import STOP_WORDS, query_terms, sentences, terms
from backend.rag.rules.measures import MEASURE, measure_words, without_measures

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")
_KANA = re.compile("[\u3041-\u30ff]")
_FUNCTION_HAN = frozenset("是在有和与及或对从到被把给让向由于为以之其这那哪谁几何如怎什么多少的了吗呢吧啊个些一不请问")
"""Characters of Chinese question words and particles: a sentence that shares only these shares nothing."""

MAX_PLAIN_CHARS, MAX_PLAIN_WORDS, MAX_PLAIN_HAN = 400, 40, 80
"""A longer question is not called plain without a look."""

AnswerKind = Literal["person", "time", "number", "place", "other"]

_KINDS: tuple[tuple[AnswerKind, str], ...] = (
    ("number", r"\bhow (?:many|much|long|old|far|large|big|tall|high|fast|heavy|often|wide|deep|late|soon)\b"),
    ("number", r"\bwhat (?:number|percentage|percent|amount|size|share)\b"),
    ("number", r"多少|几(?!乎|何)|多[大长高远久重深宽快]"),
    ("time", r"\bwhen\b|\b(?:what|which) (?:year|date|day|month|century|decade|time)\b"),
    ("time", r"什么时[候间]|何时|哪一?(?:年|天|月|日|个月|个世纪)|什么年份|几[年月点号]"),
    ("person", r"\bwho(?:m|se)?\b|谁|哪位|什么人"),
    ("place", r"\bwhere\b|哪里|哪儿|何处|什么地方|在哪"),
)
ASKS = re.compile(
    r"\b(?:who|whom|whose|what|which|when|where|why|how)\b"
    r"|谁|什么|哪|多少|几|何|怎|多(?:大|长|高|远|久|重|深|宽|快)|为何|吗|是否",
    re.IGNORECASE,
)
"""The words by which a question asks."""
_ASKS_YES_OR_NO = re.compile(
    r"^(?:is|are|was|were|do|does|did|can|could|may|must|should|will|would|has|have|had)\b", re.IGNORECASE
)
_COMPARES = re.compile(
    r"\b(?:compar\w+|differ\w*|versus|vs|both|either|respectively|similarit\w+|pros and cons|in common)\b|\bor\b"
    r"|比较|对比|更|相比|区别|差别|差异|不同|异同|分别|各自|还是|共同点|优缺点",
    re.IGNORECASE,
)
_JOINED = re.compile(
    r"(?:,|;|\band\b)\s*(?:and\s+|also\s+)?(?:who|whom|whose|what|when|where|why|how)\b|\band\s+(?:also\s+)?which\b"
    r"|[，；,;](?:以及|并且|另外|还有|又|而且)?[^，；,;]{0,8}(?:谁|什么|哪|多少|几|何时|怎|为何|多[大长高远久重深宽快])",
    re.IGNORECASE,
)


def question_language(question: str) -> Language:
    """``zh`` for text with Han characters and no kana, else ``en``."""
    return "zh" if _HAN.search(question) and not _KANA.search(question) else "en"


def answer_kind(question: str) -> AnswerKind:
    """What the answer has to hold: a time, a number, … ; ``other`` when the words do not say."""
    places: dict[AnswerKind, int] = {}
    for kind, pattern in _KINDS:
        if match := re.search(pattern, question, re.IGNORECASE):
            places[kind] = min(match.start(), places.get(kind, match.start()))
    if "time" in places or not places:
        return "time" if places else "other"
    return min(places, key=places.__getitem__)


_CHATTER = re.compile(
    r"|".join(
        (
            r"\b(?:please|kindly|thanks?|thank you|hi|hello|hey|by any chance)\b[,.!]?",
            r"\b(?:can|could|would|will) you (?:help|tell|explain|find out|look up|check|show|give)\b(?: me| us)?",
            r"\bi(?:'d| would)? (?:like|want|need|wish) to (?:know|find out|understand|ask)\b(?: about| if| whether)?",
            r"\bi(?:'m| am| was)? (?:wonder|wondering|curious|interested)(?: about| in| if| whether)?\b",
            r"\b(?:do|does) (?:you|anyone|anybody) know\b|\b(?:tell|show|give|remind) (?:me|us)(?: about)?\b",
            r"\b(?:according to|based on) (?:the|our|my|these) (?:documents?|files?|library)\b",
            r"请问|谢谢[您你]?|您好|你好|麻烦[您你]?|你知道|根据(?:文档|文件|资料)",
            r"(?:能不能|能否|可以|可不可以)?(?:告诉|帮)我们?[查找看]?(?:一下|下)?",
            r"我们?[想要希望]{1,3}(?:知道|了解|问|查询|请教)(?:的是)?(?:一下|下)?",
        )
    ),
    re.IGNORECASE,
)
"""Courtesies around a question: words of people, not of documents."""


def core(question: str) -> str:
    """``question`` without the courtesies around it; as it is when nothing else is left."""
    left = " ".join(_CHATTER.sub(" ", question).split()).strip(" ,，、")
    return left if query_terms(left) else question


_ASKING_WORDS = re.compile(
    r"|".join(
        (
            r"\bhow (?:many|much|long|old|far|large|big|tall|high|fast|heavy|often|wide|deep|late|soon|quickly)\b",
            r"\b(?:what|which) (?:kind|type|sort)s? of\b",
            r"(?:是|叫|做|为|有|用)?(?:什么|多少|哪些|哪个|哪位|哪里|哪儿|哪|谁|何时|何处|几)(?:时[候间]|地方|人|样|种|个)?",
            r"(?:有)?多[大长高远久重深宽快]|为何|怎么样?|怎样|如何|是否|能否|能不能|可不可以|是不是|有没有",
            r"的|了|吗|呢|吧|啊|呀|嘛|是|请",
        )
    ),
    re.IGNORECASE,
)
"""What asks in a question, and Chinese particles: where they stand, no word goes on."""


def asked_terms(question: str) -> set[str]:
    """The terms of a question that an answer has to be about."""
    asked = content_terms(set(query_terms(_ASKING_WORDS.sub(" ", without_measures(core(question))))))
    asked |= numbered_names(terms(question)) if asked else set()
    return asked | {MEASURE} if asked and measure_words(question) else asked


def numbered_names(words: Sequence[str]) -> set[str]:
    """Names that a number completes, as terms with a space, which no word is like: ``pump 5`` is neither any pump nor
    any 5. In Chinese the number may also come first, often with a counter between (``5号泵``)."""
    found: set[str] = set()
    for one, other, third in zip_longest(words, words[1:], words[2:], fillvalue=""):
        if _is_number(other) and _may_name(one):
            found.add(f"{one} {other}")
        elif _is_number(one) and _HAN.match(other) and _may_name(other):
            found.add(f"{one} {other}")
            if len(third) == 1 and _HAN.match(third) and _may_name(third):
                found.add(f"{one} {other}{third}")
    return found


def _is_number(word: str) -> bool:
    return word[:1].isdigit()


def _may_name(word: str) -> bool:
    return bool(word) and not _is_number(word) and word not in STOP_WORDS and not _FUNCTION_HAN.issuperset(word)


def content_terms(wanted: set[str]) -> set[str]:
    """Those of a question's terms that name something: no question words, and single Han characters only in a question
    that has nothing longer."""
    telling = {term for term in wanted if not _FUNCTION_HAN.issuperset(term)}
    return {term for term in telling if len(term) > 1 or not _HAN.match(term)} or telling


def is_plain_question(question: str) -> bool:
    """Whether ``question`` asks for one fact and needs no plan: one sentence of moderate length that asks one thing,
    compares nothing and names something to look for. What it does not recognise it calls not plain."""
    text = question.strip()
    if len(text) > MAX_PLAIN_CHARS or len(sentences(text)) != 1 or not content_terms(set(query_terms(text))):
        return False
    if len(_HAN.findall(text)) > MAX_PLAIN_HAN or len(text.split()) > MAX_PLAIN_WORDS:
        return False
    asks = ASKS.search(text) or _ASKS_YES_OR_NO.match(text)
    return asks is not None and not _COMPARES.search(text) and not _is_joined(text)


def _is_joined(text: str) -> bool:
    """Whether a second question follows a first one: ``…, and how heavy is it?``"""
    match = _JOINED.search(text)
    return match is not None and ASKS.search(text[: match.start()]) is not None
