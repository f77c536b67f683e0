"""All tools for files and code, in the order in which they are offered."""

from langchain_core.tools import BaseTool

from backend.agents.tools.list_files import TOOL_NAME as LIST_FILES
from backend.agents.tools.list_files import build_list_files
from backend.agents.tools.present_files import build_present_files
from backend.agents.tools.read_file import TOOL_NAME as READ_FILE
from backend.agents.tools.read_file import build_read_file
from backend.agents.tools.run_python import TOOL_NAME as RUN_PYTHON
from backend.agents.tools.run_python import build_run_python
from backend.agents.tools.search_uploads import TOOL_NAME as SEARCH_UPLOADS
from backend.agents.tools.search_uploads import build_search_uploads
from backend.agents.tools.thread import ThreadTools
from backend.agents.tools.view_image import TOOL_NAME as VIEW_IMAGE
from backend.agents.tools.view_image import build_view_image
from backend.agents.tools.write_file import EDIT_FILE, WRITE_FILE, build_edit_file, build_write_file

SANDBOXED = (RUN_PYTHON,)
"""Those that run in the thread's sandbox."""
NEED_FILES = (LIST_FILES, READ_FILE, SEARCH_UPLOADS, VIEW_IMAGE, EDIT_FILE)
"""Those that are of no use in a conversation without files."""
MAKE_FILES = (WRITE_FILE, RUN_PYTHON)


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
