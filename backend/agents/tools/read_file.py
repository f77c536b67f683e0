"""``read_file``: lines of a text, or the text of a document."""

from langchain.tools import tool
from langchain_core.tools import BaseTool

from backend.agents.tools.texts import pages_of
from backend.agents.tools.thread import Runtime, ThreadTools, told
from backend.infra.thread_store import VirtualPath, virtual_path
from backend.knowledge.parse import Page

TOOL_NAME = "read_file"
MAX_CHARS = 8_000
MAX_LINE_CHARS = 2_000


def build_read_file(tools: ThreadTools) -> BaseTool:
    """The tool over ``tools``."""

    @tool(TOOL_NAME)
    @told
    async def read_file(path: str, runtime: Runtime, start_line: int = 1, end_line: int | None = None) -> str:
        """Read lines of a text file, or of the text of a PDF, Word, Excel, PowerPoint, EPUB or HTML file.

        Args:
            path: The file, like /mnt/user-data/uploads/notes.txt.
            start_line: The first line, from 1.
            end_line: The last line; by default as many as fit.
        """
        found = virtual_path(path)
        pages = await pages_of(tools.paths(runtime), found, tools.parsing)
        return _excerpt(found, _lines(pages), max(1, start_line), end_line)

    return read_file


def _lines(pages: list[Page]) -> list[str]:
    lines: list[str] = []
    for page in pages:
        if page.number is not None:
            lines.append(f"--- page {page.number} ---")
        lines += page.text.split("\n")
    return lines


def _excerpt(path: VirtualPath, lines: list[str], start: int, end: int | None) -> str:
    """A header that says which lines follow and how many there are, then these."""
    shown: list[str] = []
    left = MAX_CHARS
    for line in lines[start - 1 : end]:
        line = line if len(line) <= MAX_LINE_CHARS else line[:MAX_LINE_CHARS] + "…"
        left -= len(line) + 1
        if left < 0:
            break
        shown.append(line)
    last = start + len(shown) - 1
    more = "; search_uploads finds places in a long file" if last < len(lines) and end is None else ""
    return "\n".join([f"{path}, lines {start}-{last} of {len(lines)}{more}", *shown])
