"""``run_python``: code of the model, in the thread's sandbox."""

from langchain.tools import tool
from langchain_core.tools import BaseTool

from backend.agents.tools.thread import Refusal, Runtime, ThreadTools, told
from backend.sandbox.base import Execution
from backend.text import clean_text

TOOL_NAME = "run_python"


def build_run_python(tools: ThreadTools) -> BaseTool:
    """The tool over ``tools``; it needs the sandbox whose id is in its state."""

    @tool(TOOL_NAME)
    @told
    async def run_python(code: str, runtime: Runtime) -> str:
        """Run Python for calculations and data. Only what is printed comes back; variables last for one run.

        Files: open() and pathlib below /mnt/user-data/{uploads,workspace,outputs}. There are the language with
        functions, classes, comprehensions, try, match and f-strings, and json, re, math, csv, datetime, decimal,
        random, collections, itertools. There are no class inheritance, yield, input, network, processes, statistics,
        numpy or pandas.

        Args:
            code: The program.
        """
        sandbox_id = (runtime.state.get("sandbox") or {}).get("sandbox_id")
        if sandbox_id is None:
            raise Refusal("there is no sandbox")
        sandbox = await tools.sandboxes.get(sandbox_id)
        return _told(await sandbox.run_python(clean_text(code)))

    return run_python


def _told(ended: Execution) -> str:
    output = clean_text(ended.output)
    if ended.error is None:
        return output or "(nothing was printed)"
    limit = f" ({ended.exceeded} limit)" if ended.exceeded else ""
    return f"{output}\nError{limit}: {clean_text(ended.error)}".lstrip()
