"""The state of one agent thread. It owns no resource and stores nothing; readers use ``.get``."""

from typing import Annotated, Any, NotRequired

from langchain.agents import AgentState
from typing_extensions import TypedDict  # pydantic refuses the standard one below Python 3.12

MAX_IMAGES_SHOWN = 4
"""Images in one model call."""
IMAGE_TOKENS = 1_600
"""What one of them costs a model at most, of the size to which they are brought."""


class SandboxState(TypedDict):
    """The sandbox of the thread: absent (never asked for), ``None`` (given back) or an id."""

    sandbox_id: NotRequired[str | None]


class ThreadDataState(TypedDict):
    """The thread's directories, computed anew each turn."""

    workspace_path: NotRequired[str | None]
    uploads_path: NotRequired[str | None]
    outputs_path: NotRequired[str | None]


class ViewedImageData(TypedDict):
    """An image that the model asked to see."""

    base64: str
    mime_type: str


def merge_artifacts(existing: list[str] | None, new: list[str] | None) -> list[str]:
    """Both lists joined, first occurrence and order kept; equality of strings only."""
    if existing is None:
        return new or []
    if new is None:
        return existing
    return list(dict.fromkeys([*existing, *new]))


def merge_viewed_images(
    existing: dict[str, ViewedImageData] | None, new: dict[str, ViewedImageData] | None
) -> dict[str, ViewedImageData]:
    """Both merged, the new one wins; an empty ``new`` clears."""
    if existing is None:
        return new or {}
    if new is None:
        return existing
    return {**existing, **new} if new else {}


class ThreadState(AgentState[Any]):
    """The agent's messages and what its tools share. Fields without a reducer: the last write wins.

    ``uploaded_files`` items are ``{filename, size, path, mime_type}``, ``todos`` items
    ``{content, status: pending|in_progress|completed}``, validated where they are written.
    """

    sandbox: NotRequired[SandboxState | None]
    thread_data: NotRequired[ThreadDataState | None]
    title: NotRequired[str | None]
    artifacts: Annotated[list[str], merge_artifacts]
    todos: NotRequired[list[dict[str, Any]] | None]
    uploaded_files: NotRequired[list[dict[str, Any]] | None]
    viewed_images: Annotated[dict[str, ViewedImageData], merge_viewed_images]
