"""FakeLLM without a script: a retrieval model that searches first and then quotes the first chunk."""

import json
import re
from typing import Any, Literal

from backend.chat.model_titles import TITLE_RULES
from backend.chat.notes import NOTE_RULES
from backend.rag.prompts import GRADE_RULES, PLAN_RULES, REWRITE_RULES
from tests.support.fake_llm_replies import Reply, Request, text, tool_call

KNOWLEDGE_TOOL = "search_knowledge_base"

Decision = Literal["plan", "grade", "rewrite", "note", "title"]
_RULES: dict[str, Decision] = {
    PLAN_RULES: "plan",
    GRADE_RULES: "grade",
    REWRITE_RULES: "rewrite",
    NOTE_RULES: "note",
    TITLE_RULES: "title",
}


def decision_of(request: Request) -> Decision | None:
    """Which decision of retrieval, or the note or the title, is asked for; None for any other request."""
    messages = (request.body or {}).get("messages") or []
    return _RULES.get(_plain(messages[0].get("content"))) if messages else None


def decided(**fields: Any) -> Reply:
    """A decision as a model returns it."""
    return text(json.dumps(fields, ensure_ascii=False))


def decision_reply(decision: Decision, request: Request) -> Reply:
    """What a contented model decides: one question, good passages, a more general question, a growing note, and no
    title that is better than the one by rule."""
    if decision == "title":
        return text("")
    if decision == "plan":
        return decided(complexity="simple", reason="one fact", sub_questions=[])
    if decision == "grade":
        return decided(relevance="strong", answerability="sufficient", ambiguity="none", route="answer", confidence=0.9)
    given = json.loads(_plain(request.messages[-1]["content"]))
    if decision == "note":
        return text(f"{given['note']} {len(given['messages'])} messages.".strip())
    question = given["question"]
    return decided(method="step_back", text=f"In general: {question}")


def rag_reply(request: Request, *, delay: float = 0.0, tokens: int | None = None) -> Reply:
    """Calls the knowledge tool with the user's last message if it is offered and this turn has no result yet;
    else answers with a quotation of chunk ``[1]``, or says that nothing was found."""
    question, turn = _last_turn(request.messages)
    results = [_plain(message.get("content")) for message in turn if message["role"] == "tool"]
    parameters = _knowledge_parameters(request.body.get("tools") or [])
    if parameters is not None and not results:
        properties = parameters.get("properties") or {"query": {}}
        name = (parameters.get("required") or list(properties))[0]
        call_id = f"call_{len(request.messages)}"
        return tool_call(KNOWLEDGE_TOOL, {name: question}, id=call_id, delay=delay)
    if not results:
        return text(f"You said: {question}", delay=delay, tokens=tokens)
    quote = first_chunk("\n".join(results))
    answer = f'According to the documents: "{quote}" [1]' if quote else "The documents do not answer this."
    return text(answer, delay=delay, tokens=tokens)


def first_chunk(result: str) -> str:
    """The text of the chunk numbered ``[1]`` in a tool result, without its heading line, 300 characters at most."""
    found = re.search(r"\[1\](.*?)(?=\n\s*\[\d+\]|\Z)", result, re.S)
    if found is None:
        return ""
    heading, _, rest = found[1].strip().partition("\n")
    return " ".join((rest or heading).split())[:300].replace('"', "'").strip()


def _last_turn(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    asked = max((at for at, message in enumerate(messages) if message["role"] == "user"), default=0)
    return _plain(messages[asked].get("content")), messages[asked + 1 :]


def _knowledge_parameters(tools: list[dict[str, Any]]) -> dict[str, Any] | None:
    functions = [tool.get("function") or {} for tool in tools]
    return next((f.get("parameters") or {} for f in functions if f.get("name") == KNOWLEDGE_TOOL), None)


def _plain(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content or ""
