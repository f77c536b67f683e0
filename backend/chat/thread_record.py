"""A thread's state between two turns: what the session row keeps of it, and how a turn changes it. Pure.

Kept are ``artifacts``, ``todos``, ``uploaded_files`` and ``sandbox``. The title has its own column, messages have their
own table, paths are computed anew, and the bytes of an image are kept nowhere. A row of another version never breaks
reading: what has the declared form is taken, the rest is left out.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from backend.agents.thread_state import merge_artifacts
from backend.schemas.chat import ArtifactsEvent, TodoItem, TodosEvent, UploadedFile, UploadedFilesEvent
from backend.text import clean_json, clean_text

MAX_ARTIFACTS = 500
MAX_TODOS = 100
MAX_UPLOADS = 1_000
MAX_PATH_CHARS = 1_000
MAX_TODO_CHARS = 1_000
MAX_ID_CHARS = 200

T = TypeVar("T", TodoItem, UploadedFile)
ThreadEvent = ArtifactsEvent | TodosEvent | UploadedFilesEvent

_TODO = TypeAdapter(TodoItem)
_UPLOAD = TypeAdapter(UploadedFile)


def readable_uploads(value: Any) -> list[UploadedFile]:
    """The files of ``value`` that have the declared form."""
    return _readable(value, _UPLOAD, MAX_UPLOADS)


def readable_todos(value: Any) -> list[TodoItem]:
    """The first steps of ``value`` that have the declared form, each cut to its limit."""
    found = _readable(value, _TODO, MAX_TODOS)
    return [item.model_copy(update={"content": item.content[:MAX_TODO_CHARS]}) for item in found]


def readable_artifacts(value: Any) -> list[str]:
    """The paths of ``value``, the last ones where there are too many."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    paths = [clean_text(item) for item in items if isinstance(item, str) and len(item) <= MAX_PATH_CHARS]
    return list(dict.fromkeys(paths))[-MAX_ARTIFACTS:]


def _readable(value: Any, kind: TypeAdapter[T], most: int) -> list[T]:
    found: list[T] = []
    for item in cast("list[Any]", value)[:most] if isinstance(value, list) else []:
        try:
            found.append(kind.validate_python(clean_json(item)))
        except ValidationError:
            continue
    return found


def _sandbox(value: Any) -> dict[str, Any]:
    sandbox = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    found = sandbox.get("sandbox_id")
    return {"sandbox_id": clean_text(found)[:MAX_ID_CHARS]} if isinstance(found, str) else {"sandbox_id": None}


def _dumped(items: list[T]) -> list[dict[str, Any]]:
    return [item.model_dump() for item in items]


_LOAD: dict[str, Callable[[Any], Any]] = {
    "artifacts": readable_artifacts,
    "todos": lambda value: _dumped(readable_todos(value)),
    "uploaded_files": lambda value: _dumped(readable_uploads(value)),
    "sandbox": _sandbox,
}
_TURN_KEYS = ("artifacts", "todos", "sandbox")
"""What a turn writes; the uploads are written by their routes, which a turn must not overtake."""


class ThreadRecord:
    """The state of one turn's thread: :meth:`feed` it the updates of the agent's graph."""

    def __init__(self, stored: Mapping[str, Any], title: str | None) -> None:
        """``stored`` is what the session row has, of whatever version; ``title`` the session's."""
        self._state = {name: load(stored[name]) for name, load in _LOAD.items() if stored.get(name) is not None}
        self._title = title
        self._changed: set[str] = set()

    @property
    def initial(self) -> dict[str, Any]:
        """What the agent's state begins with, beside the messages."""
        return dict(self._state) if self._title is None else {**self._state, "title": self._title}

    @property
    def uploaded(self) -> UploadedFilesEvent:
        """The files of the thread as they are known now."""
        return UploadedFilesEvent(files=readable_uploads(self._state.get("uploaded_files")))

    @property
    def stored(self) -> dict[str, Any] | None:
        """What the row has to keep of this turn's changes; ``None`` when there are none."""
        return {name: self._state[name] for name in _TURN_KEYS if name in self._changed} or None

    def feed(self, updates: Mapping[str, Any]) -> list[ThreadEvent]:
        """Takes ``{node: update}`` of the graph; gives the frames of what it has changed."""
        events: list[ThreadEvent] = []
        for update in updates.values():
            for part in cast("list[Any]", update) if isinstance(update, list) else [update]:
                if isinstance(part, dict):
                    events += self._take(cast("dict[str, Any]", part))
        return events

    def _take(self, update: dict[str, Any]) -> list[ThreadEvent]:
        """Same as the graph's own reducers: artifacts add up, the last write wins elsewhere."""
        events: list[ThreadEvent] = []
        if update.get("artifacts") is not None:
            merged = merge_artifacts(self._state.get("artifacts"), readable_artifacts(update["artifacts"]))
            if self._set("artifacts", readable_artifacts(merged)):
                events.append(ArtifactsEvent(artifacts=self._state["artifacts"]))
        if "todos" in update and self._set("todos", _LOAD["todos"](update["todos"])):
            events.append(TodosEvent(todos=readable_todos(self._state["todos"])))
        if "uploaded_files" in update and self._set(
            "uploaded_files", _LOAD["uploaded_files"](update["uploaded_files"])
        ):
            events.append(self.uploaded)
        if "sandbox" in update:
            self._set("sandbox", _sandbox(update["sandbox"]))
        return events

    def _set(self, name: str, value: Any) -> bool:
        if self._state.get(name, [] if name != "sandbox" else None) == value:
            return False
        self._state[name] = value
        self._changed.add(name)
        return True
