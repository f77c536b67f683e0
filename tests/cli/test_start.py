"""The commands that only talk HTTP start without the server's libraries."""

import subprocess
import sys

from tests.support.server import ROOT

HEAVY = (
    "backend.app",
    "backend.settings",
    "fastapi",
    "uvicorn",
    "sqlalchemy",
    "langchain_core",
    "langgraph",
    "lancedb",
)


def test_the_server_is_loaded_by_serve_only() -> None:
    script = f"import sys, backend.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[]\n", "")
