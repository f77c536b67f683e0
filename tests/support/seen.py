"""What a reader of a run has seen, whatever way it came."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(kw_only=True)
class Seen:
    """The events in their order."""

    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def text(self) -> str:
        """The answer as this reader shows it."""
        content = ""
        for event in self.events:
            if event["type"] == "content":
                content += event["content"]
            elif event["type"] == "gap":
                content = event["content"]
        return content

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        (event,) = self.of(kind)
        return event
