"""The Dockerfile without an engine: its stages, who runs, what is checked, and its pip steps in a clean environment."""

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import URL

from tests.support.server import ROOT, ServerProcess, free_port

VENV, HOME = "/opt/citewire", "/app"
INSTALL_SECONDS = 1200.0


@dataclass(frozen=True)
class Instruction:
    """One instruction; ``text`` is what follows its word, with continued lines joined."""

    word: str
    text: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


def stages() -> list[list[Instruction]]:
    """The instructions of each stage; the first of each is its FROM."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    logical = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found: list[list[Instruction]] = []
    for line in logical.splitlines():
        if not line.strip():
            continue
        word, _, text = line.strip().partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append(Instruction(word, text.strip()))
    return found


BUILD, FINAL = stages()


def of(stage: list[Instruction], word: str) -> list[Instruction]:
    return [instruction for instruction in stage if instruction.word == word]


def health_check() -> list[str]:
    """The command of the health check."""
    (check,) = of(FINAL, "HEALTHCHECK")
    return json.loads(check.text.partition("CMD ")[2])


def test_both_stages_are_one_base_without_a_registry_name() -> None:
    images = [stage[0].words[0] for stage in (BUILD, FINAL)]
    assert images == ["python:3.11-slim"] * 2


def test_the_final_stage_installs_nothing_and_removes_what_could() -> None:
    runs = " ".join(instruction.text for instruction in of(FINAL, "RUN"))
    assert not re.search(r"\binstall -r|pip install|apt|curl|wget|gcc|build-essential", runs)
    assert "pip uninstall --yes --root-user-action=ignore setuptools wheel pip" in runs
    assert [copy.text for copy in of(FINAL, "COPY")] == [f"--from=build {path} {path}" for path in (VENV, HOME)]


def test_the_server_runs_as_a_user_without_rights_from_its_first_command_on() -> None:
    order = [instruction.word for instruction in FINAL]
    assert of(FINAL, "USER") == [Instruction("USER", "citewire")]
    assert order.index("USER") < order.index("ENTRYPOINT")
    assert "RUN" not in order[order.index("USER") :]
    assert json.loads(of(FINAL, "ENTRYPOINT")[0].text) + json.loads(of(FINAL, "CMD")[0].text) == ["citewire", "serve"]


def test_every_package_comes_from_the_lock_by_its_hash() -> None:
    installs = [part for run in of(BUILD, "RUN") for part in run.text.split("&&") if " install " in part]
    assert len(installs) == 2
    assert "--require-hashes -r requirements/base.txt" in installs[0]
    assert "--no-deps --no-build-isolation --editable ." in installs[1]


def test_no_secret_and_no_registry_is_in_image_or_context() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"://|index-url|ARG |SECRET|PASSWORD|TOKEN", text)
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert ignored[0] == "*"
    assert ignored[-1] == "**/.env"


def test_what_is_copied_is_in_the_repository_and_in_the_context() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = {source for copy in of(BUILD, "COPY") for source in copy.words[:-1]}
    assert sources == allowed
    assert all((ROOT / source).exists() for source in sources)


def _copied(app: Path) -> None:
    """What the COPY instructions of the first stage put into ``/app``."""
    for copy in of(BUILD, "COPY"):
        *sources, target = copy.words
        for source in sources:
            place = app / source if target == "./" else app / target
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, place)


def _environment() -> dict[str, str]:
    """This process's environment (where packages come from is the machine's affair), with this Python first."""
    kept = dict(os.environ)  # noqa: TID251  # pip's settings of this machine, whatever they are called
    kept = {name: value for name, value in kept.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.defpath])}


async def _run(command: str, cwd: Path, env: dict[str, str]) -> str:
    """What ``command`` prints, run by a shell as RUN does. Raises ``AssertionError`` with it unless it succeeds."""
    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-ec",
        command,
        cwd=cwd,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(INSTALL_SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode == 0, f"{command}\n{output.decode()[-4000:]}"
    return output.decode()


@pytest.fixture
def image_dir() -> Iterator[Path]:
    """Where the install goes; a gigabyte, so it is not left to pytest to remove it some day."""
    with TemporaryDirectory(prefix="citewire-image-") as path:
        yield Path(path)


@pytest.mark.network
@pytest.mark.timeout(INSTALL_SECONDS + 300)
async def test_the_steps_of_the_build_give_a_server_that_passes_its_health_check(
    image_dir: Path, data_dir: Path, database_url: URL, redis_url: str
) -> None:
    venv, app = image_dir / "venv", image_dir / "app"
    _copied(app)
    for step in of(BUILD, "RUN"):
        await _run(step.text.replace(VENV, str(venv)).replace(f"{HOME}/", f"{app}/"), app, _environment())
    python = venv / "bin" / "python"
    installed = await _run(f"{python} -m pip --version || echo none; {venv}/bin/citewire --help", image_dir, {})
    assert "none" in installed
    assert "Start the server" in installed
    outside = {"PYTHONPATH": "", "DATA_DIR": str(data_dir)}
    async with ServerProcess(
        data_dir, database_url=database_url, redis_url=redis_url, env=outside, python=python
    ) as server:
        check = shlex.join([str(python), *health_check()[1:]])
        await _run(check, image_dir, {"PORT": str(server.port)})
        with pytest.raises(AssertionError, match="refused"):
            await _run(check, image_dir, {"PORT": str(free_port())})
