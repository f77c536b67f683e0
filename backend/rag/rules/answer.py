"""What the extractive model answers: sentences of the passages, quoted."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backend.catalogue import Language, say
from backend.rag.decisions import DecisionInput
from backend.rag.rules.evidence import Question, Weighed, could_answer, in_order, may_quote, weigh
from backend.rag.rules.plan import plan_rule
from backend.rag.rules.question import answer_kind, question_language
from backend.rag.rules.reading import Sentence, Source
from backend.rag.rules.rivals import rivals

MAX_QUOTES = 3
MAX_QUOTE_CHARS = 500
_FOLLOWING_SHARE = 0.5
"""A further sentence is quoted when its score is at least this share of the best one's."""
_BESIDE_SHARE = 0.8
"""The same for a sentence of another passage of the document."""
_NEAR_WEIGHT, _KIND_WEIGHT = 0.3, 0.15
"""What a sentence gains from the words around it, and from holding a number where one is asked for."""
_WRAPPED_HAN = re.compile(r"(?<=[\u3000-\u303f\u3400-\u9fff\uff00-\uffef])[ \t]*\r?\n[ \t]*(?=[\u3400-\u9fff])")
"""A line end inside Chinese text, which has no spaces."""
_NUMBER = re.compile(r"\[\s*((?:\^|ID:\s?)?\d+(?:\s?[,，、]\s?\d+)*)\s*\]")
_THINK_TAG = re.compile("<(/?think)>", re.IGNORECASE)
_TICKS = re.compile("`+")


def answer_from_passages(question: str, passages: Sequence[Mapping[str, Any]] | None) -> str:
    """The sentences of ``passages`` that match ``question`` best, each quoted and followed by its ``[n]``.

    Passages are ``{index, text, ...}``, best first; ``None`` means that nothing was looked up. Where they name the
    parts of the question that they were found for (``for_questions``), each part is answered by itself. Says so when
    nothing matches. Deterministic; nothing in it is made up.
    """
    language = question_language(question)
    if passages is None:
        return say("extractive_documents_only", language)
    parts = _parts(question, passages)
    answers = [(part, [_quotation(one) for one in best_sentences(part, found)]) for part, found in parts]
    if not any(quotes for _, quotes in answers):
        return say("extractive_nothing_found", language)
    lead = say("extractive_lead", language)
    if len(answers) == 1:
        return "\n\n".join([lead, *answers[0][1]])
    nothing = say("extractive_part_not_found", language)
    return "\n\n".join([lead, *(line for part, quotes in answers for line in (f"**{part}**", *(quotes or [nothing])))])


def answer_from_uploads(question: str, passages: Sequence[Mapping[str, Any]]) -> str | None:
    """The sentences of the user's own files that match ``question`` best, each quoted with its file and page.

    Passages are ``{filename, page_number?, text, ...}``, best first. ``None`` when nothing in them matches.
    """
    numbered = [{**item, "index": at} for at, item in enumerate(passages)]
    quotes = [(_quoted(one.text), numbered[one.index]) for one in best_sentences(question, numbered)]
    if not quotes:
        return None
    language = question_language(question)
    lines = [f"{text} ({_place(source, language)})" for text, source in quotes]
    return "\n\n".join([say("extractive_files_lead", language), *lines])


def _place(source: Mapping[str, Any], language: Language) -> str:
    filename = _quotable(str(source.get("filename") or ""))
    page = source.get("page_number")
    return filename if page is None else say("extractive_page", language, filename=filename, page=page)


def _parts(question: str, passages: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """The parts to answer, each with its passages; the whole question with all of them when they name no parts.

    A part for which nothing was found has no passages to name it: it is known where the parts are those of the rule.
    """
    named = list(dict.fromkeys(str(part) for item in passages for part in item.get("for_questions") or ()))
    planned = plan_rule(DecisionInput(question, question_language(question))).sub_questions if named else []
    parts = planned if set(named) <= set(planned) else named
    if not parts:
        return [(question, list(passages))]
    return [(part, [item for item in passages if part in (item.get("for_questions") or ())]) for part in parts]


@dataclass(frozen=True, slots=True)
class ScoredSentence:
    """A sentence of passage ``index``, exactly as it stands there. ``named``: the numbers of the question it holds."""

    text: str
    index: int
    score: float
    named: frozenset[str] = frozenset()


def best_sentences(question: str, passages: Sequence[Mapping[str, Any]]) -> list[ScoredSentence]:
    """At most ``MAX_QUOTES`` sentences, best first; empty when none shares enough with ``question``.

    They are of the passage that answers most likely and of others of its document. Another document is quoted beside
    it only when it answers as well and differently.
    """
    wanted, weighed = weigh(question, [Source.read(item) for item in passages])
    ordered = in_order(weighed)

    def scored(one: Weighed, sentence: Sentence) -> ScoredSentence:
        return _scored(one, sentence, int(passages[one.place]["index"]), wanted, question)

    found = [(one, sentence) for one in ordered for sentence in one.sentences if may_quote(sentence, wanted)]
    if not found:
        return []
    first = found[0][0]
    own = [scored(one, sentence) for one, sentence in found if one is first]
    best = max(sentence.score for sentence in own)
    beside = [scored(one, sentence) for one, sentence in found if _same_document(one, first) and one is not first]
    other = [scored(rival.of, rival.sentence) for rival in rivals(question, wanted, weighed)]
    return _select(own + [sentence for sentence in beside if sentence.score >= best * _BESIDE_SHARE] + other)


def _same_document(one: Weighed, other: Weighed) -> bool:
    return one.source.document == other.source.document


def _scored(one: Weighed, sentence: Sentence, index: int, wanted: Question, question: str) -> ScoredSentence:
    kind = answer_kind(question)
    own = sentence.held | sentence.about
    score = wanted.share(own, one.asked) + _NEAR_WEIGHT * wanted.share(sentence.near, one.asked)
    if kind in ("number", "time") and could_answer(kind, sentence, wanted):
        score += _KIND_WEIGHT
    numbers = frozenset(term for term in own | sentence.above if any(char.isdigit() for char in term))
    return ScoredSentence(sentence.text, index, score, numbers)


def _select(scored: Sequence[ScoredSentence]) -> list[ScoredSentence]:
    """The best sentence and those near it. Where it holds a number of the question, so must the others: a sentence
    about pump 91 does not answer for pump 119."""
    ranked = sorted(scored, key=lambda sentence: -sentence.score)
    chosen: list[ScoredSentence] = []
    for sentence in ranked:
        if len(chosen) == MAX_QUOTES or sentence.score < ranked[0].score * _FOLLOWING_SHARE:
            break
        if ranked[0].named <= sentence.named and all(sentence.text != other.text for other in chosen):
            chosen.append(sentence)
    return chosen


def _quotation(sentence: ScoredSentence) -> str:
    return f"{_quoted(sentence.text)} [{sentence.index}]"


def _quoted(sentence: str) -> str:
    """``sentence`` between quotation marks, with nothing in it that steers the reader of the answer."""
    return f"“{_quotable(sentence)}”"


def _quotable(sentence: str) -> str:
    """One line of at most ``MAX_QUOTE_CHARS`` in which nothing steers the reader of the answer.

    A bracketed number of the source would pass for a citation, a ``<think>`` tag would swallow what follows, and a
    backtick that nothing closes would make the quotation's own number part of the code.
    """
    text = " ".join(_WRAPPED_HAN.sub("", sentence).split())
    text = _THINK_TAG.sub(r"‹\1›", _NUMBER.sub(r"(\1)", text))
    text = text if len(text) <= MAX_QUOTE_CHARS else text[: MAX_QUOTE_CHARS - 1].rstrip() + "…"
    return text.replace("`", "'") if _opens_code(text) else text


def _opens_code(text: str) -> bool:
    """Whether code that begins in ``text`` is not closed there by a run of as many backticks."""
    opened = ""
    for ticks in _TICKS.findall(text):
        opened = "" if ticks == opened else opened or ticks
    return bool(opened)
