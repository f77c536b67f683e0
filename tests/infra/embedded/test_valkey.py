import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest
import redis
import redis.asyncio

from backend.infra.embedded import EmbeddedServiceError, embedded_valkey
from backend.infra.embedded.placement import wheel_file
from tests.infra.embedded.support import DEADLINE, NOBODY, Holders, answers, processes_of


@contextmanager
def client(url: str) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(url, socket_timeout=DEADLINE, decode_responses=True) as connected:
        yield connected


def server_pid(url: str) -> int:
    with client(url) as connected:
        return int(connected.info("server")["process_id"])


def test_it_serves_on_a_private_socket_only_as_a_bounded_cache(place: Path, data_dir: Path) -> None:
    with embedded_valkey(data_dir) as url:
        path = Path(unquote(url.removeprefix("unix://")))
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with client(url) as connected:
            settings = connected.config_get("*")
        expected = {"port": "0", "save": "", "appendonly": "no", "maxmemory-policy": "allkeys-lru"}
        assert {name: settings[name] for name in expected} == expected
        assert int(settings["maxmemory"]) == 256 * 1024 * 1024
    assert processes_of(place) == []


async def test_the_url_is_one_that_the_asynchronous_client_takes(data_dir: Path) -> None:
    with embedded_valkey(data_dir) as url:
        async with redis.asyncio.Redis.from_url(url) as connected:
            await connected.set("key", "value")
            assert await connected.get("key") == b"value"


def test_a_second_start_is_empty_and_works(data_dir: Path) -> None:
    for _ in range(2):
        with embedded_valkey(data_dir) as url, client(url) as connected:
            assert connected.get("key") is None
            connected.set("key", "value")


def test_a_server_whose_owner_was_killed_is_adopted_and_stopped(place: Path, data_dir: Path, holders: Holders) -> None:
    owner = holders.start("valkey", data_dir)
    pid = server_pid(owner.url)
    owner.kill()
    with embedded_valkey(data_dir) as url:
        assert server_pid(url) == pid
    assert processes_of(place) == []


@pytest.mark.parametrize("owner_too", [False, True])
def test_a_killed_server_is_replaced_by_the_next_start(
    place: Path, data_dir: Path, holders: Holders, owner_too: bool
) -> None:
    owner = holders.start("valkey", data_dir)
    pid = server_pid(owner.url)
    os.kill(pid, signal.SIGKILL)
    if owner_too:
        owner.kill()
    with embedded_valkey(data_dir) as url:
        assert url == owner.url
        assert server_pid(url) != pid
    if not owner_too:
        assert answers(owner.url)
        owner.leave()
    assert processes_of(place) == []


def test_a_frozen_server_is_replaced(data_dir: Path, holders: Holders) -> None:
    owner = holders.start("valkey", data_dir)
    pid = server_pid(owner.url)
    owner.kill()
    os.kill(pid, signal.SIGSTOP)
    with embedded_valkey(data_dir) as url:
        assert server_pid(url) != pid


def test_two_processes_share_and_the_last_to_leave_stops_it(place: Path, data_dir: Path, holders: Holders) -> None:
    first = holders.start("valkey", data_dir)
    second = holders.start("valkey", data_dir)
    assert server_pid(first.url) == server_pid(second.url)
    first.leave()
    assert answers(second.url)
    second.leave()
    assert processes_of(place) == []


def test_ctrl_c_reaches_the_owner_first_and_the_server_ends_in_order(
    place: Path, data_dir: Path, holders: Holders
) -> None:
    owner = holders.start("valkey", data_dir)
    assert "after interrupt: alive" in owner.interrupt()
    assert processes_of(place) == []
    assert "ready to exit, bye bye" in (data_dir / "valkey.log").read_text()


def test_a_log_that_grew_is_emptied_at_the_start(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "valkey.log").write_bytes(b"old line\n" * 600_000)
    with embedded_valkey(data_dir):
        pass
    assert b"old line" not in (data_dir / "valkey.log").read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_on_a_directory_of_root_is_told_the_file(data_dir: Path, holders: Holders) -> None:
    data_dir.mkdir()
    process = holders.launch("valkey", data_dir, "--uid", NOBODY)
    said, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 3
    assert said == f"EmbeddedServiceError: embedded valkey cannot be used: Permission denied ({data_dir}/valkey.lock)\n"


def test_a_platform_without_binaries_is_told_the_setting() -> None:
    with pytest.raises(EmbeddedServiceError, match="set REDIS_URL to a server of your own"):
        wheel_file("no_such_package", "valkey-server", "REDIS_URL")
