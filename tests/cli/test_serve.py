"""The end of a server and of what it started."""

import signal
from pathlib import Path

import pytest

from tests.infra.embedded.support import processes_of
from tests.support.server import ServerProcess


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
async def test_a_signal_ends_the_server_and_its_embedded_servers(data_dir: Path, number: signal.Signals) -> None:
    async with ServerProcess(data_dir) as server:
        assert len(processes_of(data_dir)) >= 1
        server.send_signal(number)
        assert await server.wait() == 0
        assert processes_of(data_dir) == []
        assert "Traceback" not in server.logs()
