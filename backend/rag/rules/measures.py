"""Measures that a question asks for by an adjective, and the words that tell them."""

import re

_MEASURES: tuple[tuple[re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (re.compile(asked, re.IGNORECASE), re.compile(said, re.IGNORECASE))
    for asked, said in (
        (
            r"\bheav(?:y|ier|iest)\b|\bweigh\w*|多重|更重|最重",
            r"\bweigh\w*|\b(?:kilo)?grams?\b|\bk?g\b|\btonn?es?\b|\bpounds?\b|重|公斤|千克|吨",
        ),
        (
            r"\bhow (?:long|wide|tall|high|deep|far)\b|\b(?:longer|longest|wider|taller|higher|deeper)\b"
            r"|多[长宽高深远]",
            r"\b(?:centi|milli|kilo)?met(?:re|er)s?\b|\b(?:mm|cm|km|m|feet|foot|inch(?:es)?|miles?)\b"
            r"|\b(?:minutes?|hours?|days?|weeks?|months?|years?)\b|毫米|厘米|公里|千米|米|小时|分钟|[天日周年]|个?月",
        ),
        (
            r"\bhow (?:expensive|cheap)\b|\b(?:cheaper|cheapest|dearer|price|costs?)\b"
            r"|\bmore expensive\b|多少钱|更贵|更便宜|价格",
            r"\b(?:price|costs?|fees?|euros?|dollars?|pounds?)\b|[€$£¥元]|费用|价格",
        ),
        (
            r"\bhow (?:fast|quick\w*|soon)\b|\b(?:faster|fastest|quicker)\b|多快|多久|更快",
            r"\b(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?)\b|/h\b|秒|分钟|小时|[天日周年]|个?月",
        ),
    )
)
"""Adjectives of questions, and the words by which a sentence tells that measure: ``how heavy`` and ``weighs``."""


MEASURE = "<measure>"
"""Stands among the terms of a question for the measure that it asks for; no word is like it."""


def measure_words(question: str) -> re.Pattern[str] | None:
    """Finds the words that tell the measure which ``question`` asks for; ``None`` when it asks for none."""
    return next((said for asked, said in _MEASURES if asked.search(question)), None)


def without_measures(question: str) -> str:
    """``question`` without the adjectives that ask for a measure."""
    for asked, _ in _MEASURES:
        question = asked.sub(" ", question)
    return question
