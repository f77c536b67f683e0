"""The documentation names what there is: options, commands, events, file types, targets of make, files it links to."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from backend.cli import app
from backend.cli.chat import HELP
from backend.knowledge.parse import FILE_TYPES
from backend.schemas.export import event_schemas
from backend.settings import Settings, load_settings
from docs import settings_table
from tests.support.server import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rows(page: str, heading: str) -> Iterator[list[str]]:
    """The cells of the rows of the table whose first column is headed ``heading``."""
    table = re.search(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert table is not None, heading
    for line in table[1].splitlines():
        yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def anchors(page: str) -> set[str]:
    """What the headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", NAMES)
def test_links_within_the_repository_lead_somewhere(name: str) -> None:
    for target in LINK.findall(read(name)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        assert file.exists(), target
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), target


def test_the_tables_of_options_are_what_the_settings_say() -> None:
    options = settings_table.sections(settings_table.EXAMPLE.read_text(encoding="utf-8"))
    for path in settings_table.PAGES:
        page = path.read_text(encoding="utf-8")
        assert settings_table.written(page, options) == page, f"{path.name}: make settings"


def test_every_option_stands_in_the_page_of_options_once() -> None:
    found = re.findall(r"^\| `([A-Z0-9_]+)` \|", read("docs/configuration.md"), re.MULTILINE)
    assert sorted(found) == sorted(name.upper() for name in Settings.model_fields)


def test_an_option_without_a_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="PORT has no comment"):
        settings_table.sections("# --- a ---\n# Where.\nHOST=x\nPORT=8000\n")


def test_what_a_value_may_be_is_said_in_words() -> None:
    said = {
        name: settings_table.values(name) for name in ("PORT", "LEASE_SECONDS", "MAX_RUNS_PER_USER", "LLM_FALLBACK")
    }
    assert said == {
        "PORT": "0 to 65535",
        "LEASE_SECONDS": "above 0",
        "MAX_RUNS_PER_USER": "from 1",
        "LLM_FALLBACK": "`none`, `extractive`",
    }


def test_the_table_of_events_names_each_event() -> None:
    union: dict[str, Any] = event_schemas()[0]
    named = [name for cells in rows(read("docs/api.md"), "event") for name in code(cells[0])]
    assert sorted(named) == sorted(union["discriminator"]["mapping"])


def test_the_table_of_commands_names_each_command() -> None:
    command: Any = typer.main.get_command(app)
    groups = {name: found.commands for name, found in command.commands.items() if hasattr(found, "commands")}
    there = {name for name in command.commands if name not in groups}
    there |= {f"{group} {name}" for group, commands in groups.items() for name in commands}
    named: set[str] = set()
    for cells in rows(read("README.md"), "command"):
        first, *more = code(cells[0])
        words = first.removeprefix("citewire ").split()
        if words[0] in groups:
            named |= {f"{words[0]} {word}" for word in (words[1], *more)}
        else:
            named |= {words[0], *(name.removeprefix("citewire ") for name in more)}
    assert named == there


def test_what_is_said_of_options_of_commands_is_there() -> None:
    command: Any = typer.main.get_command(app)
    for cells in rows(read("README.md"), "command"):
        words = code(cells[0])[0].split()
        given = {option for text in code(cells[1]) for option in re.findall(r"--[a-z-]+", text)}
        assert given <= {name for parameter in command.commands[words[1]].params for name in parameter.opts}
        if words[1] == "chat":
            assert {text for text in code(cells[1]) if text.startswith("/")} <= set(re.findall(r"^/\w+", HELP, re.M))


def test_the_table_of_documents_names_each_extension() -> None:
    named = [name for cells in rows(read("docs/documents.md"), "type") for name in code(cells[1])]
    assert sorted(named) == sorted(FILE_TYPES)


@pytest.mark.parametrize("name", [*NAMES, ".env.example"])
def test_targets_of_make_that_are_named_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):(?!=)", read("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^|&& )make ([a-z-]+)", read(name), re.MULTILINE))
    assert named <= targets


def test_every_target_of_make_is_declared_and_named() -> None:
    makefile = read("Makefile")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == set(re.findall(r"^([a-z-]+):(?!=)", makefile, re.MULTILINE))
    told = "".join(read(name) for name in NAMES)
    assert all(f"make {target}" in told for target in phony[1].split())


def option_blocks() -> list[str]:
    """Each block of the documentation that is nothing but options."""
    blocks = [text for name in NAMES for text in re.findall(r"^```sh\n(.*?)^```", read(name), re.DOTALL | re.MULTILINE)]
    return [text for text in blocks if re.fullmatch(r"(?:[A-Z][A-Z0-9_]*=\S+\n)+", text)]


@pytest.mark.parametrize("text", option_blocks())
def test_lines_of_options_are_taken_by_the_server(text: str, tmp_path: Path) -> None:
    file = tmp_path / "options.env"
    file.write_text(text, encoding="utf-8")
    settings = load_settings(file)
    given = dict(line.split("=", 1) for line in text.splitlines())
    assert {name.lower() for name in given} <= settings.model_fields_set
    assert settings.llm_base_url == given.get("LLM_BASE_URL")


def test_each_provider_has_its_lines() -> None:
    page = read("docs/models.md")
    for name in ("OpenAI", "DeepSeek", "Qwen", "Ollama", "vLLM", "llama.cpp"):
        section = re.search(rf"^## {re.escape(name)}\n(.*?)^## ", page, re.DOTALL | re.MULTILINE)
        assert section is not None, name
        assert re.search(r"^LLM_BASE_URL=https?://\S+\n(LLM_API_KEY=\S+\n)?LLM_MODEL=\S+$", section[1], re.MULTILINE)
