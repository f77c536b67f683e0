"""All tools for files and code, in the order in which they are offered."""

from langchain_core.tools import BaseTool

from backend.agents.tools.list_files import build_list_files
from backend.agents.tools.present_files import build_present_files
from backend.agents.tools.read_file import build_read_file
from backend.agents.tools.run_python import TOOL_NAME as RUN_PYTHON
from backend.agents.tools.run_python import build_run_python
from backend.agents.tools.search_uploads import build_search_uploads
from backend.agents.tools.thread import ThreadTools
from backend.agents.tools.view_image import build_view_image
from backend.agents.tools.write_file import build_edit_file, build_write_file

SANDBOXED = (RUN_PYTHON,)
"""Those that run in the thread's sandbox."""


def build_file_tools(tools: ThreadTools) -> list[BaseTool]:
    """The tools over ``tools``."""
    return [
        build_list_files(tools),
        build_read_file(tools),
        build_search_uploads(tools),
        build_view_image(tools),
        build_run_python(tools),
        build_write_file(tools),
        build_edit_file(tools),
        build_present_files(tools),
    ]
