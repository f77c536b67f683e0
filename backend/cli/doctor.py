"""``citewire doctor``: prints what the checks find. They load the whole server, so no other command loads them."""

from importlib import import_module

import typer

from backend.cli.findings import Finding, failed
from backend.cli.output import console, one_line

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor() -> None:
    """Find what is wrong with the install on this machine, and say what to type. Exit code 1 if anything fails.

    Looks at Python, the options, DATA_DIR, PostgreSQL, the cache, the index, the port and the model endpoints. Starts
    the embedded servers if they do not run, changes no data, and works beside a running server.
    """
    states: list[str] = []

    def report(finding: Finding) -> None:
        states.append(finding.state)
        _print(finding)

    try:
        diagnosis = import_module("backend.cli.diagnosis")
    except ImportError as error:
        report(failed("Installation", f"{error.name or 'a library'} cannot be loaded", "make install"))
    else:
        diagnosis.diagnose(report)
    if "fail" in states:
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    console.print(f"{finding.state:<5}", style=_STYLES[finding.state], end="")
    console.print(one_line(f"{finding.what}: {finding.text}"))
    if finding.remedy is not None:
        console.print(f"     type: {one_line(finding.remedy)}", style="bold")
