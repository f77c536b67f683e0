"""What a tool may know of the turn it runs in; the chat room fulfils it, rooms below only see this."""

from collections.abc import Collection
from typing import Any, Protocol
from uuid import UUID

from langchain_core.messages.ai import UsageMetadata

from backend.catalogue import Language
from backend.schemas.chat import HitlResumeState


class AgentContext(Protocol):
    """The runtime context of one agent run."""

    @property
    def user_id(self) -> UUID: ...

    @property
    def session_id(self) -> str: ...

    @property
    def thread_id(self) -> str | None:
        """``{user id}/{session row id}``: whose files and sandbox these are. ``None``: a turn without a thread."""
        ...

    sandbox_id: str | None
    """The sandbox that this turn has acquired and not given back."""

    @property
    def language(self) -> Language: ...

    @property
    def collections(self) -> Collection[UUID] | None:
        """The collections of documents that the turn asks about; ``None``: all documents."""
        ...

    @property
    def note(self) -> str:
        """What was noted of the turns that no prompt holds any more; empty: nothing."""
        ...

    tool_usage: UsageMetadata | None
    """Tokens of the model calls that tools have made; ``None``: none that is known."""

    passages_shown: int | None
    """How many of the retrieved passages a model has seen, from the first on; no others can be cited. ``None``: all."""

    def emit_rag_step(
        self, icon: str, label: str, detail: str = "", *, group: str | None = None, group_label: str | None = None
    ) -> None:
        """Reports one retrieval step; never raises, never blocks."""
        ...

    def store_rag_trace(
        self, trace: dict[str, Any] | None, hitl_resume_state: HitlResumeState | dict[str, Any] | None = None
    ) -> None:
        """Keeps how the evidence was found, for the message of this turn."""
        ...

    @property
    def asks_back(self) -> bool:
        """Whether the trace was stored with a snapshot: the turn ends with a question to the user."""
        ...

    def acquire_knowledge_tool_slot(self) -> bool:
        """True once a turn."""
        ...
