"""The quick start of the README, command by command, as a new user would type it."""

import asyncio
import os
import re
import sys
from pathlib import Path

from fpdf import FPDF

from tests.support.server import ROOT, ServerProcess

MARK = "<!-- quick start: executed by tests/acceptance/test_quick_start.py -->"
ANSWERS = {
    "Username:": "ada",
    "Password: ": "correct horse battery",
    "Repeat for confirmation: ": "correct horse battery",
}
"""What is typed when the terminal shows this; a hidden question ends with a blank once the keyboard is listened to."""
DEADLINE_SECONDS = 100.0


def quick_start() -> str:
    """The commands of the README's quick start."""
    block = re.search(re.escape(MARK) + r"\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    return block[1]


def write_handbook(path: Path) -> None:
    """Thirty pages; page n is about pump 7 n, whose interval is 13 n hours."""
    pdf = FPDF()
    pdf.set_font("helvetica", size=12)
    for page in range(1, 31):
        pdf.add_page()
        pdf.multi_cell(
            0,
            8,
            f"Chapter {page}. About the machines of hall {page}.\n\n"
            f"The maintenance interval of pump number {page * 7} is {page * 13} hours. "
            "It is logged by the shift supervisor.",
        )
    pdf.output(str(path))


async def type_commands(commands: str, home: Path, env: dict[str, str]) -> tuple[int, str]:
    """Run ``commands`` in a shell at a terminal, answering what it asks. Gives exit code and standard output."""
    keyboard, terminal = os.openpty()
    shell = await asyncio.create_subprocess_exec(
        "bash",
        "-euc",
        commands,
        cwd=home,
        env=env,
        stdin=terminal,
        stderr=terminal,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    os.close(terminal)
    seen = ""

    def answer() -> None:
        nonlocal seen
        try:
            seen += os.read(keyboard, 4096).decode(errors="replace")
        except OSError:  # the other end is closed
            loop.remove_reader(keyboard)
            return
        for prompt, text in ANSWERS.items():
            if seen.endswith(prompt):
                seen = ""
                os.write(keyboard, text.encode() + b"\n")

    loop = asyncio.get_running_loop()
    loop.add_reader(keyboard, answer)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            output, _ = await shell.communicate()
    finally:
        loop.remove_reader(keyboard)
        os.close(keyboard)
    assert shell.returncode is not None
    return shell.returncode, output.decode() + seen


async def test_the_quick_start_of_the_readme_does_what_it_says(tmp_path: Path, data_dir: Path) -> None:
    write_handbook(tmp_path / "handbook.pdf")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    async with ServerProcess(data_dir, arguments=["--sample"]) as server:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CITEWIRE_URL": server.url, "LANG": "C.UTF-8"}
        code, output = await type_commands(quick_start(), tmp_path, env)
    assert code == 0, output
    assert "as ada (admin)" in output
    assert "Searching the documents" in output
    assert "“The maintenance interval of pump number 119 is 221 hours.” [1]" in output
    assert re.search(
        r'^\[1\] handbook\.pdf, page 17: "The maintenance interval of pump number 119', output, re.MULTILINE
    )
