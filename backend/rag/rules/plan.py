"""Whether a question is several, and which: comparisons and questions that are joined."""

import re
from collections.abc import Callable, Sequence

from backend.infra.analyze import query_terms, sentences
from backend.rag.decisions import MAX_SUB_QUESTIONS, DecisionInput, PlanDecision
from backend.rag.rules.question import ASKS, content_terms, question_language

_EN_ITEM = r"(?P<{}>[^,;?]{{1,80}}?)"
_A, _B = _EN_ITEM.format("a"), _EN_ITEM.format("b")
_EN_ASPECT = (
    r"(?:,?\s+(?:in terms of|regarding|with re(?:gard|spect) to|concerning|as to|in|by)\s+(?P<aspect>[^?]{1,80}?))?"
)
_EN_END = r"\s*[?.!]*$"
_EN = tuple(
    re.compile(pattern + _EN_ASPECT + _EN_END, re.IGNORECASE)
    for pattern in (
        rf"\bcompar(?:e|ing|ison (?:of|between))\s+(?:the\s+)?{_A}\s+(?:and|with|to|against|versus|vs\.?)\s+{_B}",
        rf"\bdifferences?\s+(?:is\s+|are\s+)?(?:there\s+)?(?:between|of)\s+{_A}\s+and\s+{_B}",
        rf"\bhow\s+(?:does|do|is|are|did)\s+{_A}\s+(?:differ(?:ent)?)\s+from\s+{_B}",
        rf"\bhow\s+(?:do|are|did)\s+{_A}\s+and\s+{_B}\s+(?:differ|different|compare)",
        rf"^(?!(?:what|which|who|how|when|where|why|in)\b){_A}\s+(?:versus|vs\.?)\s+{_B}",
    )
)
_EN_CHOICE = re.compile(
    rf"^(?P<ask>(?:which|what|who)\b[^?]{{0,100}}?\b(?:\w+er|more|less|better|best|\w+est)\b[^?]{{0,60}}?)(?:,|:|\s+-)"
    rf"\s*{_A},?\s+or\s+{_B}{_EN_END}",
    re.IGNORECASE,
)
_ZH_ITEM = r"(?P<{}>[^，。；？?,;和与跟同及]{{1,40}}?)"
_ZA, _ZB = _ZH_ITEM.format("a"), _ZH_ITEM.format("b")
_ZH_JOIN = r"\s*(?:和|与|跟|同|及|以及|[vV][sS]\.?)\s*"
_ZH_ASPECT = r"(?:的(?P<aspect>[^，。；？?,;的]{1,20}?)|在(?P<aspect2>[^，。；？?,;]{1,20}?)(?:方面|上|上面))?"
_ZH = tuple(
    re.compile(pattern)
    for pattern in (
        rf"(?:比较|对比)(?:一下|下)?\s*{_ZA}{_ZH_JOIN}{_ZB}{_ZH_ASPECT}\s*[。？?！]*$",
        rf"(?:^|[，,：:]|请问)\s*{_ZA}{_ZH_JOIN}{_ZB}(?:之间的?)?{_ZH_ASPECT}\s*(?:之间|相比|比较)?(?:[，,])?\s*(?:的)?(?:主要)?"
        r"(?:有什么|有何|有哪些|有啥|存在什么|是什么|有没有)?(?:主要)?(?:的)?(?:[两三几2-9]个)?(?:区别|差别|差异|不同|异同)",
        rf"(?:^|[，,：:]|请问)\s*{_ZA}{_ZH_JOIN}{_ZB}{_ZH_ASPECT}\s*(?:相比|比较)?[，,]?\s*"
        r"(?:(?:哪个|哪一个|哪种|哪款|谁)\s*(?P<more>更[^？?。]{1,8})|分别|各自?)",
    )
)
_NEXT_QUESTION = re.compile(
    r"(?:,|;)?\s*\b(?:and|also)\s+(?=(?:who|whom|whose|what|when|where|why|how|which)\b)"
    r"|[，；,;]\s*(?:以及|并且|另外|还有|而且|同时)?(?=[^，；,;？?]{0,30}(?:谁|什么|哪|多少|几|何时|怎|为何))",
    re.IGNORECASE,
)
_LEAST_PART = 4
"""``How and when did …``: a part this short asks nothing of its own."""
_POINTS_BACK = re.compile(
    r"\b(?:it|its|they|them|their|he|she|his|her|this|that|these|those)\b|它|其|他|她|这|那", re.IGNORECASE
)
_TOPIC = re.compile(
    r"\b(?:of|for|about|does|do|did|is|are|was|were)\s+((?:the\s+)?[^,;?]{2,60}?)(?=\s+(?:last|cost|weigh|made|built)\b|[,;?]|$)",
    re.IGNORECASE,
)
_ZH_TOPIC = re.compile(r"^(?:请问)?([^，。；？?的]{2,30}?)(?:的|是|在|有|由|于|多|什么|哪|谁|怎|何)")


MAX_PLANNED_CHARS = 400
"""A longer text is searched as a whole: a rule cannot tell what in it asks."""


def plan_rule(given: DecisionInput) -> PlanDecision:
    """``complex`` for a comparison of two things and for several questions in one, with the 2 to 4 questions that
    answer it; else ``simple``."""
    question = " ".join(given.question.split())
    if len(question) > MAX_PLANNED_CHARS:
        return PlanDecision(complexity="simple", reason="too long to be told apart")
    for reason, split in _SPLITS:
        parts = list(dict.fromkeys(split(question)))[:MAX_SUB_QUESTIONS]
        if len(parts) > 1:
            return PlanDecision(complexity="complex", reason=reason, sub_questions=parts)
    return PlanDecision(complexity="simple", reason="one question")


def _comparison(question: str) -> list[str]:
    chinese = question_language(question) == "zh"
    for pattern in _ZH if chinese else _EN:
        if match := pattern.search(question):
            named = match.groupdict()
            aspect = named.get("aspect") or named.get("aspect2")
            items = [named["a"].strip(), named["b"].strip()]
            if more := named.get("more"):
                return [f"{item}{more}吗？" for item in items]
            return _chinese_parts(items, aspect) if chinese else _english_parts(items, aspect)
    return []


def _english_parts(items: list[str], aspect: str | None) -> list[str]:
    """``the weight of A`` and ``B`` are asked for their weight both."""
    of = re.match(r"(?P<aspect>.{2,60}?)\s+(?:of|between|for)\s+(?P<a>.+)", items[0], re.IGNORECASE)
    if aspect is None and of is not None:
        aspect = of["aspect"]
        items = [of["a"], re.sub(r"^that of\s+|^those of\s+", "", items[1])]
    items = [re.sub(r"^both\s+", "", item, flags=re.IGNORECASE) for item in items]
    if aspect is None:
        return [f"What is {item}?" for item in items]
    article = "" if re.match(r"(?:the|a|an|their)\b", aspect, re.IGNORECASE) else "the "
    aspect = re.sub(r"^their\b", "the", aspect)
    return [f"What is {article}{aspect} of {item}?" for item in items]


def _chinese_parts(items: list[str], aspect: str | None) -> list[str]:
    """``A的重量`` and ``B的重量`` stay what they are; an aspect behind the second one holds for both."""
    if aspect is None:
        return [f"{item}是什么？" for item in items]
    return [f"{item}的{aspect}是什么？" if aspect not in item else f"{item}是什么？" for item in items]


def _choice(question: str) -> list[str]:
    """``Which is heavier, A or B?``"""
    match = _EN_CHOICE.search(question)
    return [f"{match['ask']}, {match[name].strip()}?" for name in ("a", "b")] if match else []


def _joined(question: str) -> list[str]:
    """Several questions, one after another; one that only points back is told what the first was about."""
    parts = [part for sentence in sentences(question) for part in _asking_parts(sentence)]
    return [parts[0], *(_complete(part, parts[0]) for part in parts[1:])] if len(parts) > 1 else []


def _asking_parts(sentence: str) -> list[str]:
    """The parts of a sentence that ask; it stays whole unless each of them does."""
    parts = [part.strip(" ,;，；") for part in _NEXT_QUESTION.split(sentence)]
    parts = parts if all(ASKS.search(part) and len(part) > _LEAST_PART for part in parts) else [sentence]
    return [_ended(part) for part in parts if ASKS.search(part)]


def _ended(part: str) -> str:
    mark = "？" if question_language(part) == "zh" else "?"
    return part if part.endswith(("?", "？")) else part.rstrip("。.") + mark


def _complete(part: str, first: str) -> str:
    lacking = len(content_terms(set(query_terms(part)))) < 2
    if not lacking and not _POINTS_BACK.search(part):
        return part
    chinese = question_language(first) == "zh"
    topic = (_ZH_TOPIC if chinese else _TOPIC).search(first)
    if topic is None:
        return part
    mark = "？" if chinese else "?"
    named = topic[1].strip().split(" of ")[-1]
    return f"{part.rstrip('?？')} ({named}){mark}"


_Split = Callable[[str], Sequence[str]]
_SPLITS: tuple[tuple[str, _Split], ...] = (
    ("two things are compared", _comparison),
    ("one of two is asked for", _choice),
    ("several questions in one", _joined),
)
