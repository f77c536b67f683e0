import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.embedded.support import Holders, processes_of


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short directory, open to every account; its `tmp` is the temporary directory of the test.

    At the end nothing may run from it and nothing may be left in `tmp`.
    """
    directory = Path(tempfile.mkdtemp(prefix="cw-", dir="/tmp"))
    directory.chmod(0o755)
    temporary = directory / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield directory
    running = processes_of(directory)
    left = sorted(path.name for path in temporary.iterdir())
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(directory)
    assert running == []
    assert left == []


@pytest.fixture
def data_dir(place: Path) -> Path:
    return place / "data"


@pytest.fixture
def holders(place: Path) -> Iterator[Holders]:
    """Starts processes that hold a server."""
    starter = Holders(place / "tmp")
    yield starter
    starter.close()
