"""A question back to the user: made from what retrieval could not decide, kept with the session, answered once."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from uuid_utils.compat import uuid7

from backend.catalogue import Language, say
from backend.chat.request_context import StoredTrace
from backend.chat.titles import one_line, short_line
from backend.log import get_logger
from backend.rag.decisions import MAX_OPTIONS
from backend.rag.resume import HitlResume
from backend.schemas.chat import HitlInfo, HitlResumeState, PendingHitlState

PENDING_HITL = "pending_hitl"
"""Where the metadata of a session hold the question that waits."""

MAX_PROMPT_GRAPHEMES = 300
MAX_OPTION_GRAPHEMES = 120
MAX_QUESTION_CHARS = 2_000
MAX_ANSWER_CHARS = 2_000
"""Of each answer, in the state that is kept; the message itself is stored whole."""

_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()]*\)|\[[^\[\]]*\])")
_TAG = re.compile(r"<(?=[a-zA-Z/!?])[^<>]*>?")
_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//+|\bwww\.|\b(?:javascript|data|vbscript):", re.IGNORECASE)
_BRACKETS = str.maketrans("[]", "()")
_NUMBER = re.compile(r"\W*(\d{1,3})\W*")

_log = get_logger(__name__)


def pending_state(stored: Any) -> PendingHitlState | None:
    """What the metadata hold, if it can be read; anything else is as good as no question, and is logged."""
    if stored is None:
        return None
    try:
        return PendingHitlState.model_validate(stored)
    except ValidationError as error:
        _log.warning("pending_hitl_unreadable", fields=[".".join(map(str, item["loc"])) for item in error.errors()])
        return None


def hitl_info(pending: PendingHitlState) -> HitlInfo:
    """What a client is told of it."""
    return HitlInfo(**pending.model_dump(include=set(HitlInfo.model_fields)))


def question_back(
    stored: StoredTrace | None, message: str, answered: PendingHitlState | None, language: Language
) -> PendingHitlState | None:
    """The question that a turn over ``message`` ends with; ``None`` when its retrieval did not ask back.

    ``stored`` is the turn's trace and snapshot. If the turn itself ``answered`` a question, the original question
    stays and the answers grow.
    """
    if stored is None or stored.hitl_resume_state is None:
        return None
    state, trace = stored.hitl_resume_state, stored.rag_trace or {}
    original, answers = message[:MAX_QUESTION_CHARS], list[str]()
    if answered is not None:
        original, answers = answered.original_question, resume_of(answered, message).answers
        state = state.model_copy(update={"question": answered.resume_state.question})
    return PendingHitlState(
        id=str(uuid7()),
        original_question=original,
        prompt=_prompt(trace, state, language),
        options=_options(trace.get("hitl_options") or []),
        route=state.route,
        retrieval_status=state.retrieval_status,
        answers=answers,
        resume_state=state,
        created_at=datetime.now(UTC),
    )


def resume_of(pending: PendingHitlState, message: str) -> HitlResume:
    """What retrieval goes on with when ``message`` answers ``pending``."""
    answers = [*pending.answers, chosen_answer(pending.options, message)]
    return HitlResume(pending.resume_state.question, answers, pending.resume_state)


def chosen_answer(options: Sequence[str], message: str) -> str:
    """The option that ``message`` names by its text, whatever the case, or by its number from 1 as the only number in
    it; else the message itself, a free answer."""
    text = " ".join(message.split())[:MAX_ANSWER_CHARS]
    for option in options:
        if option.casefold() == text.casefold():
            return option
    number = _NUMBER.fullmatch(text)
    if number is not None and 1 <= int(number[1]) <= len(options):
        return options[int(number[1]) - 1]
    return text


def question_text(hitl: HitlInfo | PendingHitlState, language: Language) -> str:
    """The question as the message that is stored: the prompt and, if there are options, a heading and their list."""
    if not hitl.options:
        return hitl.prompt
    lines = [say("hitl_options", language), *(f"- {option}" for option in hitl.options)]
    return f"{hitl.prompt}\n\n" + "\n".join(lines)


def _prompt(trace: dict[str, Any], state: HitlResumeState, language: Language) -> str:
    """The model's own question when there is one, else one of the catalogue."""
    if prompt := safe_line(trace.get("hitl_prompt") or "", MAX_PROMPT_GRAPHEMES):
        return prompt
    if state.route == "scope_select":
        return say("hitl_scope_select", language)
    named: list[str] = trace.get("missing_slots") or []
    slots = [slot for item in named if (slot := safe_line(item, MAX_OPTION_GRAPHEMES))]
    if slots:
        return short_line(say("hitl_clarify_slots", language, slots=", ".join(slots)), MAX_PROMPT_GRAPHEMES)
    return say("hitl_clarify", language)


def _options(texts: Sequence[str]) -> list[str]:
    """Those that say something, each once."""
    options = dict.fromkeys(safe_line(text, MAX_OPTION_GRAPHEMES) for text in texts)
    return [option for option in options if option][:MAX_OPTIONS]


def safe_line(text: str, max_graphemes: int) -> str:
    """``text``, which a model wrote after it had read documents, as one short line that no client renders as a link,
    an image or a tag: of links the label stays, of addresses what comes after the scheme."""
    line, before = short_line(text, max_graphemes), None
    while line != before:
        before = line
        line = _ADDRESS.sub("", _TAG.sub("", _LINK.sub(r"\1", line)))
    return one_line(line.translate(_BRACKETS))
