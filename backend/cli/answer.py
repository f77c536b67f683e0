"""What a stream of events says, put together: the answer, where it stands in the documents, and how it ended."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """The turn as far as it was seen; the field names are those of ``POST /chat``."""

    session_id: str
    response: str = ""
    steps: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    citations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    rag_trace: dict[str, Any] | None = None
    hitl: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    run_id: str | None = None
    message_id: str | None = None
    status: str | None = None
    usage: dict[str, Any] | None = None
    finish_reason: str | None = None
    flags: list[str] = field(default_factory=list[str])

    def add(self, event: dict[str, Any]) -> None:
        """Take in one event; types and keys that are not known here are left out."""
        match event["type"]:
            case "content":
                self.response += event["content"]
            case "gap":
                self.response = event["content"]
            case "rag_step":
                self.steps.append(event["step"])
            case "citations":
                self.citations = event["citations"]
            case "trace":
                self.rag_trace = event["rag_trace"]
            case "hitl_request":
                self.hitl = event["hitl"]
            case "error":
                self.error = {key: event[key] for key in ("code", "content", "retryable")}
            case "run_started":
                self.run_id, self.message_id = event["run_id"], event["message_id"]
            case "done":
                self.status, self.usage = event["status"], event["usage"]
                self.finish_reason, self.flags = event["finish_reason"], event["flags"]
            case _:
                pass
