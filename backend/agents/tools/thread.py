"""What the tools for files share: the thread they work in, its texts, and failures as texts for the model."""

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from langchain.tools import ToolRuntime

from backend.agents.context import AgentContext
from backend.agents.thread_state import ThreadState
from backend.errors import DocumentError, TooLarge, TypeMismatch
from backend.infra.thread_store import PathRefused, StoredFile, StoreFull, StoreLimits
from backend.infra.threads import VIRTUAL_ROOT, ThreadPaths
from backend.knowledge.config import KnowledgeConfig
from backend.sandbox.base import SandboxError, SandboxProvider

Runtime = ToolRuntime[Any, ThreadState]
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ThreadTools:
    """What these tools are made of. ``locate`` gives the directories of a thread id."""

    locate: Callable[[str], ThreadPaths]
    sandboxes: SandboxProvider
    parsing: KnowledgeConfig

    @property
    def limits(self) -> StoreLimits:
        """What a directory may hold, the same as for code in the sandbox."""
        return StoreLimits(self.sandboxes.limits.storage_bytes, self.sandboxes.limits.storage_files)

    def paths(self, runtime: Runtime) -> ThreadPaths:
        """The directories of the turn's thread, whatever a model says. Raises ``ValueError`` without a thread."""
        context: AgentContext = runtime.context
        if not context.thread_id:
            raise ValueError("a thread id is needed")
        return self.locate(context.thread_id)


class Refusal(Exception):
    """What a tool was asked cannot be done; the text tells the model why."""


def told(work: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R | str]]:
    """``work`` with what can go wrong as its answer: a failed tool never fails a turn."""

    @functools.wraps(work)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R | str:
        try:
            return await work(*args, **kwargs)
        except (Refusal, PathRefused) as error:
            return f"Error: {error}"
        except StoreFull:
            return "Error: the directory is full; make or keep fewer or smaller files"
        except (DocumentError, TooLarge, TypeMismatch) as error:
            return f"Error: the file cannot be read ({error.code})"
        except SandboxError as error:
            return f"Error: {error}; try again later"
        except OSError as error:
            return f"Error: {_reason(error)}"

    return run


def _reason(error: OSError) -> str:
    """Never the library's own text: it holds the path on this machine."""
    match error:
        case FileNotFoundError():
            return "there is no such file; list_files shows those that there are"
        case IsADirectoryError() | NotADirectoryError():
            return "that is a directory, or below a file; list_files shows the files"
        case PermissionError():
            return "that may not be done with this file"
        case _:
            return "the file could not be used"


def listed(files: list[StoredFile]) -> str:
    """The files, one a line, names on one line each."""
    lines = [f"{_printable(str(item.path))} ({item.mime_type}, {item.size} bytes)" for item in files]
    return "\n".join(lines) or f"There are no files below {VIRTUAL_ROOT}."


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
