"""What every sandbox provider does. An adapter joins by its name in ``PROVIDERS``."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from backend.infra.threads import ThreadPaths, locate_thread, thread_id_of
from backend.sandbox.base import Execution, Sandbox, SandboxError, SandboxLimits, SandboxProvider, UnknownSandbox
from backend.sandbox.local import LocalSandboxes

LIMITS = SandboxLimits(
    seconds=2.0,
    sleep_seconds=0.5,
    memory_bytes=32 * 1024 * 1024,
    recursion_depth=100,
    output_chars=5_000,
    storage_bytes=10_000,
    storage_files=20,
)
USER = UUID(int=7)

Make = Callable[[Path, SandboxLimits], SandboxProvider]


def local(data_dir: Path, limits: SandboxLimits) -> SandboxProvider:
    return LocalSandboxes(lambda thread_id: locate_thread(data_dir, thread_id), limits, processes=2)


PROVIDERS: dict[str, Make] = {"local": local}


@pytest.fixture(params=PROVIDERS)
def make(request: pytest.FixtureRequest) -> Make:
    return PROVIDERS[request.param]


@pytest.fixture
async def provider(make: Make, tmp_path: Path) -> AsyncGenerator[SandboxProvider]:
    made = make(tmp_path, LIMITS)
    yield made
    await made.aclose()


@pytest.fixture
def thread() -> str:
    return thread_id_of(USER, uuid4())


@pytest.fixture
async def sandbox(provider: SandboxProvider, thread: str) -> Sandbox:
    return await provider.get(await provider.acquire(thread))


@pytest.fixture
def paths(tmp_path: Path, thread: str) -> ThreadPaths:
    found = locate_thread(tmp_path, thread)
    found.make()
    return found


async def test_a_thread_has_one_sandbox_until_it_is_released(provider: SandboxProvider, thread: str) -> None:
    first = await provider.acquire(thread)
    assert await provider.acquire(thread) == first
    assert (await provider.get(first)).thread_id == thread
    other = await provider.acquire(thread_id_of(USER, uuid4()))
    assert other != first
    await provider.release(first)
    await provider.release(first)
    with pytest.raises(UnknownSandbox):
        await provider.get(first)
    assert await provider.acquire(thread) != first


@pytest.mark.parametrize("thread_id", ["", "x", "..", f"{USER}", f"{USER}/..", f"../{USER}", f"{USER}/{USER}/a"])
async def test_what_is_no_thread_id_gets_no_sandbox(provider: SandboxProvider, thread_id: str) -> None:
    with pytest.raises(ValueError):
        await provider.acquire(thread_id)


async def test_what_is_printed_comes_back(sandbox: Sandbox) -> None:
    assert await sandbox.run_python("x = 6 * 7\nprint('sum', x)\nprint('总计')") == Execution("sum 42\n总计\n")


async def test_no_variable_lives_on_to_the_next_run(sandbox: Sandbox) -> None:
    await sandbox.run_python("x = 1")
    again = await sandbox.run_python("print(x)")
    assert again.error is not None
    assert "NameError" in again.error


async def test_an_error_is_told_with_what_was_printed_before(sandbox: Sandbox) -> None:
    ended = await sandbox.run_python("print('before')\n1 / 0")
    assert ended.output == "before\n"
    assert ended.error is not None
    assert "ZeroDivisionError" in ended.error
    assert ended.exceeded is None
    wrong = await sandbox.run_python("def (")
    assert wrong.error is not None
    assert "SyntaxError" in wrong.error


async def test_files_are_those_of_the_thread(sandbox: Sandbox, paths: ThreadPaths) -> None:
    (paths.uploads / "sales.csv").write_text("name,price\na,3\nb,4\n")
    ended = await sandbox.run_python(
        "import csv\n"
        "rows = list(csv.DictReader(open('/mnt/user-data/uploads/sales.csv')))\n"
        "open('/mnt/user-data/outputs/sum.txt', 'w').write(str(sum(int(r['price']) for r in rows)))\n"
        "open('notes.txt', 'w').write('kept')"
    )
    assert ended == Execution("")
    assert (paths.outputs / "sum.txt").read_text() == "7"
    assert (paths.workspace / "notes.txt").read_text() == "kept"
    assert (await sandbox.run_python("print(open('notes.txt').read())")).output == "kept\n"


async def test_uploads_cannot_be_written(sandbox: Sandbox, paths: ThreadPaths) -> None:
    (paths.uploads / "mine.txt").write_text("as it was")
    for code in ("open('{}', 'w').write('x')", "import os\nos.remove('{}')", "import os\nos.rename('{}', 'y')"):
        ended = await sandbox.run_python(code.format("/mnt/user-data/uploads/mine.txt"))
        assert ended.error is not None
    assert (paths.uploads / "mine.txt").read_text() == "as it was"
    assert [path.name for path in paths.uploads.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../../../canary", "/mnt/user-data/workspace/../../../canary", "/mnt/user-data/incoming/x"]
)
async def test_nothing_outside_is_read_or_written(
    sandbox: Sandbox, paths: ThreadPaths, tmp_path: Path, path: str
) -> None:
    (tmp_path / "canary").write_text("secret")
    before = sorted(str(found) for found in tmp_path.rglob("*"))
    for code in (f"print(open({path!r}).read())", f"open({path!r}, 'w').write('x')"):
        ended = await sandbox.run_python(code)
        assert ended.error is not None
        assert "secret" not in ended.output
    assert sorted(str(found) for found in tmp_path.rglob("*")) == before


async def test_a_link_out_of_the_thread_is_not_followed(sandbox: Sandbox, paths: ThreadPaths, tmp_path: Path) -> None:
    (tmp_path / "canary").write_text("secret")
    (paths.workspace / "absolute").symlink_to(tmp_path / "canary")
    (paths.workspace / "relative").symlink_to("../../../../canary")
    for name in ("absolute", "relative"):
        ended = await sandbox.run_python(f"print(open({name!r}).read())")
        assert ended.error is not None
        assert ended.output == ""


async def test_another_thread_is_not_seen(provider: SandboxProvider, sandbox: Sandbox, thread: str) -> None:
    other = thread_id_of(UUID(int=8), uuid4())
    theirs = await provider.get(await provider.acquire(other))
    await theirs.run_python("open('theirs.txt', 'w').write('secret')")
    for path in ("theirs.txt", f"../../{other.partition('/')[2]}/workspace/theirs.txt"):
        assert (await sandbox.run_python(f"print(open({path!r}).read())")).error is not None


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("while True: pass", "time"),
        ("x = [0]\nwhile True: x = x + x", "memory"),
        ("10 ** 10 ** 8", "memory"),
        ("'a' * 10 ** 9", "memory"),
        ("def f(): return f()\nf()", "recursion"),
        ("import time\ntime.sleep(60)", "sleep"),
        ("while True: print('x' * 100)", "output"),
        ("open('big', 'w').write('x' * 20_000)", "storage"),
    ],
)
async def test_a_limit_ends_the_run_and_not_the_sandbox(sandbox: Sandbox, code: str, limit: str) -> None:
    ended = await sandbox.run_python(code)
    assert ended.exceeded == limit
    assert ended.error
    assert len(ended.output) <= LIMITS.output_chars
    assert (await sandbox.run_python("print(1 + 1)")).output == "2\n"


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess",
        "import socket",
        "import ctypes",
        "import os\nos.system('true')",
        "import os\nos.environ['PATH']",
        "import os\nos.symlink('/etc/passwd', 'link')",
        "__import__('os')",
        "().__class__.__bases__",
        "import os\nos.listdir('/')",
    ],
)
async def test_the_machine_is_out_of_reach(sandbox: Sandbox, code: str) -> None:
    ended = await sandbox.run_python(code)
    assert ended.error is not None
    assert ended.exceeded is None


async def test_a_full_directory_takes_nothing_more(sandbox: Sandbox, paths: ThreadPaths) -> None:
    (paths.workspace / "full").write_bytes(b"x" * LIMITS.storage_bytes)
    assert (await sandbox.run_python("open('more', 'w').write('x')")).error is not None
    assert not (paths.workspace / "more").exists()
    (paths.workspace / "full").unlink()
    for number in range(LIMITS.storage_files):
        (paths.workspace / str(number)).touch()
    assert (await sandbox.run_python("open('more', 'w').write('x')")).error is not None


async def test_a_huge_last_value_stays_where_it_is(sandbox: Sandbox) -> None:
    assert await sandbox.run_python("list(range(100_000))") == Execution("")


async def test_code_that_is_too_long_is_not_run(sandbox: Sandbox) -> None:
    ended = await sandbox.run_python("#" * 1_000_000)
    assert ended.error is not None


async def test_runs_at_once_are_apart(provider: SandboxProvider) -> None:
    async def run(number: int) -> str:
        sandbox = await provider.get(await provider.acquire(thread_id_of(USER, uuid4())))
        await sandbox.run_python(f"open('own', 'w').write('{number}')")
        return (await sandbox.run_python("print(open('own').read())")).output

    assert await asyncio.gather(*(run(number) for number in range(8))) == [f"{number}\n" for number in range(8)]


async def test_a_run_that_nobody_waits_for_is_ended(provider: SandboxProvider, sandbox: Sandbox) -> None:
    running = asyncio.create_task(sandbox.run_python("while True: pass"))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    assert (await sandbox.run_python("print(1)")).output == "1\n"


async def test_release_ends_what_runs(make: Make, tmp_path: Path, thread: str) -> None:
    provider = make(tmp_path, replace(LIMITS, seconds=60.0))
    sandbox = await provider.get(await provider.acquire(thread))
    running = asyncio.create_task(sandbox.run_python("while True: pass"))
    await asyncio.sleep(0)
    await provider.release(sandbox.id)
    with pytest.raises(SandboxError):
        await running
    await provider.aclose()
    with pytest.raises(SandboxError):
        await provider.acquire(thread)
