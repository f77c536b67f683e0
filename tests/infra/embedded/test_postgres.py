import contextlib
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import asyncpg
import pytest

from backend.infra.embedded import EmbeddedServiceError, embedded_postgres
from backend.infra.embedded.placement import PUBLIC_ROOT, postgres_install, wheel_file
from backend.infra.embedded.process import wait_until
from tests.infra.embedded.support import DEADLINE, NOBODY, Holders, answers, processes_of, query

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another account")


def server_pid(data: Path) -> int:
    return int((data / "postmaster.pid").read_text().splitlines()[0])


def kill_server(data: Path) -> None:
    """kill -9 of the server; its sessions end by themselves a moment later."""
    os.kill(server_pid(data), signal.SIGKILL)


def server_uid(data: Path) -> int:
    return data.stat().st_uid


def make_note(data_dir: Path) -> None:
    """Start, store a row, stop."""
    with embedded_postgres(data_dir) as url:
        query(url, "create table note (text text)")
        query(url, "insert into note values ('kept')")


def read_note(data_dir: Path) -> str:
    with embedded_postgres(data_dir) as url:
        return query(url, "select text from note")


def test_a_second_start_on_the_same_data_sees_the_data(data_dir: Path) -> None:
    make_note(data_dir)
    assert read_note(data_dir) == "kept"
    assert processes_of(data_dir) == []


def test_it_listens_on_a_private_socket_only_and_keeps_durability(data_dir: Path) -> None:
    with embedded_postgres(data_dir) as url:
        assert query(url, "show listen_addresses") == ""
        assert query(url, "show unix_socket_permissions") == "0700"
        assert query(url, "show fsync") == "on"
        assert query(url, "show server_encoding") == "UTF8"
        assert query(url, "select current_user || '@' || current_database()") == "citewire@citewire"
        assert stat.S_IMODE(Path(str(url.query["host"])).stat().st_mode) == 0o700
    assert stat.S_IMODE((data_dir / "postgres").stat().st_mode) == 0o700


def test_what_users_wrote_stays_out_of_its_log(data_dir: Path) -> None:
    with embedded_postgres(data_dir) as url, pytest.raises(Exception, match="syntax"):
        query(url, "select 'a private sentence'::integer")
    assert "a private sentence" not in (data_dir / "postgres.log").read_text()


def test_a_server_whose_owner_was_killed_is_adopted_and_stopped(data_dir: Path, holders: Holders) -> None:
    owner = holders.start("postgres", data_dir)
    query(owner.url, "create table note (text text)")
    pid = server_pid(data_dir / "postgres")
    owner.kill()
    with embedded_postgres(data_dir) as url:
        assert server_pid(data_dir / "postgres") == pid
        assert query(url, "select count(*) from note") == 0
    assert processes_of(data_dir) == []


def test_a_killed_server_is_replaced_by_the_next_start_and_its_users_find_it(data_dir: Path, holders: Holders) -> None:
    make_note(data_dir)
    first = holders.start("postgres", data_dir)
    kill_server(data_dir / "postgres")
    with embedded_postgres(data_dir) as url:
        assert query(url, "select text from note") == "kept"
        assert query(first.url, "select text from note") == "kept"
    assert answers(first.url)
    first.leave()
    assert processes_of(data_dir) == []


@pytest.mark.skipif(sys.platform != "linux", reason="sessions of a dead server are found in /proc")
def test_a_session_that_outlives_a_killed_server_is_no_obstacle(data_dir: Path, holders: Holders) -> None:
    make_note(data_dir)
    owner = holders.start("postgres", data_dir)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(query, owner.url, "select count(*) from generate_series(1, 100000000000)")
        active = (
            "select max(pid) from pg_stat_activity where query like '%generate_series%' and pid <> pg_backend_pid()"
        )
        assert wait_until(lambda: query(owner.url, active) is not None, DEADLINE)
        session = query(owner.url, active)
        kill_server(data_dir / "postgres")
        try:
            assert read_note(data_dir) == "kept"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(session, signal.SIGKILL)
        with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
            busy.result(DEADLINE)
    owner.leave()


def test_it_starts_again_after_owner_and_server_were_killed(data_dir: Path, holders: Holders) -> None:
    make_note(data_dir)
    owner = holders.start("postgres", data_dir)
    kill_server(data_dir / "postgres")
    owner.kill()
    assert read_note(data_dir) == "kept"


@pytest.mark.parametrize("content", ["", "41", "41\n/somewhere\n17", "not a number\n" * 8])
def test_a_half_written_pid_file_of_a_dead_server_is_no_obstacle(data_dir: Path, content: str) -> None:
    make_note(data_dir)
    (data_dir / "postgres" / "postmaster.pid").write_text(content)
    assert read_note(data_dir) == "kept"


def test_a_server_that_lost_its_pid_file_is_replaced(data_dir: Path, holders: Holders) -> None:
    make_note(data_dir)
    owner = holders.start("postgres", data_dir)
    pid = server_pid(data_dir / "postgres")
    owner.kill()
    (data_dir / "postgres" / "postmaster.pid").write_text(str(pid)[:2])
    with embedded_postgres(data_dir) as url:
        assert query(url, "select text from note") == "kept"
        assert len(processes_of(data_dir)) == 1
        assert processes_of(data_dir) != [pid]


@contextmanager
def stranger(uid: int) -> Iterator[int]:
    """A living process of the server's own account that is no server."""
    other = uid if os.geteuid() == 0 else None
    with subprocess.Popen(["sleep", "600"], user=other) as process:
        yield process.pid
        process.kill()


@contextmanager
def zombie(uid: int) -> Iterator[int]:
    """A process of the server's account that has ended and is not collected."""
    other = uid if os.geteuid() == 0 else None
    with subprocess.Popen(["true"], user=other) as process:
        state = Path(f"/proc/{process.pid}/stat")
        assert wait_until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z", DEADLINE)
        yield process.pid


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("other", [stranger, zombie])
def test_a_pid_file_that_names_another_process_is_no_obstacle(
    data_dir: Path, holders: Holders, other: Callable[[int], AbstractContextManager[int]]
) -> None:
    make_note(data_dir)
    owner = holders.start("postgres", data_dir)
    pid_file = data_dir / "postgres" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    kill_server(data_dir / "postgres")
    owner.kill()
    with other(server_uid(data_dir / "postgres")) as pid:
        pid_file.write_text("\n".join([str(pid), *lines[1:]]) + "\n")
        assert read_note(data_dir) == "kept"


def test_two_processes_share_and_the_last_to_leave_stops_it(data_dir: Path, holders: Holders) -> None:
    first = holders.start("postgres", data_dir)
    pid = server_pid(data_dir / "postgres")
    second = holders.start("postgres", data_dir)
    assert second.url == first.url
    first.leave()
    assert answers(second.url)
    assert server_pid(data_dir / "postgres") == pid
    second.leave()
    assert processes_of(data_dir) == []
    assert not (data_dir / "postgres" / "postmaster.pid").exists()


def test_processes_that_start_at_once_on_new_data_share_one_server(data_dir: Path, holders: Holders) -> None:
    launched = [holders.launch("postgres", data_dir) for _ in range(3)]
    started = [holders.wait(process) for process in launched]
    assert len({holder.url for holder in started}) == 1
    assert all(answers(holder.url) for holder in started)
    for holder in started:
        holder.leave()
    assert (data_dir / "postgres.log").read_text().count("starting PostgreSQL") == 1


def test_threads_share_like_processes(data_dir: Path) -> None:
    def use(_: int) -> int:
        with embedded_postgres(data_dir) as url:
            return query(url, "select 7")

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(use, range(3))) == [7, 7, 7]


def test_another_temporary_directory_finds_the_same_server(place: Path, data_dir: Path, holders: Holders) -> None:
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o1777)
    owner = holders.start("postgres", data_dir, temporary=elsewhere)
    with embedded_postgres(data_dir) as url:
        assert url.render_as_string() == owner.url
        owner.leave()
        assert answers(owner.url)
    assert list(elsewhere.iterdir()) == []


def test_ctrl_c_reaches_the_owner_first_and_the_server_ends_in_order(data_dir: Path, holders: Holders) -> None:
    owner = holders.start("postgres", data_dir)
    assert "after interrupt: alive" in owner.interrupt()
    assert processes_of(data_dir) == []
    log = (data_dir / "postgres.log").read_text()
    assert "received fast shutdown request" in log
    assert "database system is shut down" in log


def test_a_removed_socket_directory_is_made_again(data_dir: Path, holders: Holders) -> None:
    make_note(data_dir)
    owner = holders.start("postgres", data_dir)
    owner.kill()
    shutil.rmtree((data_dir / "postgres.socket").read_text())
    assert read_note(data_dir) == "kept"


def test_a_crash_while_the_files_are_made_is_repaired(data_dir: Path, holders: Holders) -> None:
    process = holders.launch("postgres", data_dir)
    assert wait_until(lambda: (data_dir / "postgres.part" / "PG_VERSION").exists(), DEADLINE)
    process.kill()
    assert not (data_dir / "postgres").exists()
    make_note(data_dir)
    assert read_note(data_dir) == "kept"
    assert not (data_dir / "postgres.part").exists()


def test_a_long_data_path_works(place: Path) -> None:
    data_dir = place / ("long " * 30) / ("name" * 30)
    make_note(data_dir)
    assert read_note(data_dir) == "kept"


def test_a_long_temporary_directory_works(place: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = place / ("long" * 30)
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with embedded_postgres(data_dir) as url:
        sockets = Path(str(url.query["host"]))
        assert query(url, "select 1") == 1
    assert not sockets.exists()


def test_a_failing_start_tells_the_last_line_of_the_log(data_dir: Path) -> None:
    make_note(data_dir)
    with (data_dir / "postgres" / "postgresql.conf").open("a") as file:
        file.write("no_such_setting = 1\n")
    with (
        pytest.raises(EmbeddedServiceError, match=r"PostgreSQL did not start: .*configuration") as caught,
        embedded_postgres(data_dir),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert processes_of(data_dir) == []


def test_files_of_another_version_and_foreign_files_are_refused_untouched(data_dir: Path) -> None:
    data = data_dir / "postgres"
    data.mkdir(parents=True)
    (data / "thesis.txt").write_text("mine")
    with pytest.raises(EmbeddedServiceError, match="not empty"), embedded_postgres(data_dir):
        pass
    (data / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedServiceError, match="made by PostgreSQL 12"), embedded_postgres(data_dir):
        pass
    assert (data / "thesis.txt").read_text() == "mine"


def test_a_socket_directory_that_is_not_private_is_refused(data_dir: Path) -> None:
    with embedded_postgres(data_dir) as url:
        sockets = Path(str(url.query["host"]))
    sockets.mkdir(mode=0o755)
    with pytest.raises(EmbeddedServiceError, match="not a private directory"), embedded_postgres(data_dir):
        pass
    sockets.rmdir()
    target = data_dir / "target"
    target.mkdir(mode=0o700)
    sockets.symlink_to(target)
    with pytest.raises(EmbeddedServiceError, match="not a private directory"), embedded_postgres(data_dir):
        pass
    assert list(target.iterdir()) == []
    sockets.unlink()


def test_a_platform_without_binaries_is_told_the_setting() -> None:
    with pytest.raises(EmbeddedServiceError, match="set DATABASE_URL to a server of your own"):
        wheel_file("no_such_package", "bin/postgres", "DATABASE_URL")


@as_root
def test_root_leaves_closed_directories_closed_and_keeps_copies_outside(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    wheel = postgres_install()
    install = closed / wheel.parent.name / wheel.name
    shutil.copytree(wheel, install)
    libraries = f"{wheel.parent.name}.libs"
    if (wheel.parent.parent / libraries).is_dir():
        shutil.copytree(wheel.parent.parent / libraries, closed / libraries)
    public_root = place / "public"
    for expected in ("created", "kept"):
        with embedded_postgres(closed / "data", install=install, public_root=public_root) as url:
            if expected == "created":
                query(url, "create table note as select 'kept' as text")
            assert query(url, "select text from note") == "kept"
            pid = server_pid(closed / "data" / "postgres")
            assert Path(f"/proc/{pid}/exe").readlink().is_relative_to(public_root)
    data = (closed / "data" / "postgres").resolve()
    assert data.is_relative_to(public_root)
    assert (data.stat().st_mode & 0o777, data.stat().st_uid) == (0o700, NOBODY)
    assert {stat.S_IMODE(path.stat().st_mode) for path in [public_root, *public_root.iterdir()]} == {0o711}
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@as_root
def test_root_keeps_data_of_a_closed_directory_below_var_lib(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    home = PUBLIC_ROOT / hashlib.sha256(os.fsencode(closed / "data")).hexdigest()[:16]
    rooted = PUBLIC_ROOT.exists()
    try:
        make_note(closed / "data")
        assert (home / "postgres" / "PG_VERSION").exists()
        (closed / "data" / "postgres").unlink()  # DATA_DIR made anew: nothing is lost
        assert read_note(closed / "data") == "kept"
    finally:
        shutil.rmtree(home, ignore_errors=True)
        if not rooted and not list(PUBLIC_ROOT.iterdir()):
            PUBLIC_ROOT.rmdir()


@as_root
def test_an_ordinary_user_starts_it_without_root(place: Path, holders: Holders) -> None:
    data_dir = place / "theirs"
    data_dir.mkdir()
    os.chown(data_dir, NOBODY, NOBODY)
    owner = holders.start("postgres", data_dir, "--uid", NOBODY)
    assert query(owner.url, "show data_directory") == str(data_dir / "postgres")
    owner.leave()
    assert processes_of(data_dir) == []
    assert {path.stat().st_uid for path in data_dir.iterdir()} == {NOBODY}


@as_root
def test_root_runs_data_of_an_ordinary_user_as_that_user(place: Path, holders: Holders) -> None:
    data_dir = place / "theirs"
    data_dir.mkdir()
    os.chown(data_dir, 12345, 12345)
    with embedded_postgres(data_dir):
        pass
    for path in [data_dir / "postgres", *(data_dir / "postgres").rglob("*")]:
        os.chown(path, 12345, 12345, follow_symlinks=False)
    with embedded_postgres(data_dir) as url:
        pid = server_pid(data_dir / "postgres")
        assert Path(f"/proc/{pid}").stat().st_uid == 12345
        assert query(url, "select 1") == 1


@as_root
def test_an_ordinary_user_on_data_of_root_is_told_what_to_do(data_dir: Path, holders: Holders) -> None:
    make_note(data_dir)
    process = holders.launch("postgres", data_dir, "--uid", 12345)
    said, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 3
    assert f"{data_dir}/postgres belongs to nobody" in said
    assert "start as that user, or set DATA_DIR" in said
    assert said.count("\n") == 1
