"""What the tests of questions back share: documents to ask about, and what a grading model says of their passages."""

from typing import Any

from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import Reply
from tests.support.fake_llm_rag import decided

QUESTION = "How long is the warranty?"
PROMPT = "Which pump do you mean?"
OPTIONS = ["Pump A", "Pump B"]
DOCUMENTS = {
    "pump-a.txt": "Pump A. The warranty of pump A lasts 24 months.",
    "pump-b.txt": "Pump B. The warranty of pump B lasts 36 months.",
}


def clarify(prompt: str | None = PROMPT, options: list[str] = OPTIONS, **fields: Any) -> Reply:
    """A grade that asks for what the question leaves open."""
    given: dict[str, Any] = {
        "relevance": "strong",
        "answerability": "partial",
        "ambiguity": "missing_slot",
        "route": "clarify",
        "confidence": 0.6,
        "missing_slots": ["model of the pump"],
        "options": options,
        "reason": "two pumps",
        **fields,
    }
    return decided(**given if prompt is None else {**given, "prompt": prompt})


def scope_select(options: list[str]) -> Reply:
    """A grade that asks which of several documents is meant."""
    return clarify("Which document do you mean?", options, ambiguity="multiple_candidates", route="scope_select")


def good() -> Reply:
    """A grade that is content."""
    return decided(relevance="strong", answerability="sufficient", ambiguity="none", route="answer", confidence=0.9)


async def upload(client: Client, documents: dict[str, str] = DOCUMENTS) -> None:
    for name, content in documents.items():
        answer = await client.http.post("/documents/upload", files={"file": (name, content.encode())})
        assert answer.status_code == 200, answer.text


async def pending(client: Client, session_id: str = "s") -> dict[str, Any] | None:
    """The question that waits, as the session tells it."""
    answer = await client.get(f"/sessions/{session_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()["hitl"]


def hitl_of(seen: Stream) -> dict[str, Any]:
    """The question that a turn ended with."""
    return seen.one("hitl_request")["hitl"]
