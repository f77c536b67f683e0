"""The compose file without an engine: what it names exists, what is secret is asked for, what starts is waited for."""

import re
from typing import Any

import pytest
import yaml

from backend.settings import Settings
from tests.support.server import ROOT

TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VARIABLE = re.compile(r"(?<!\$)\$(?:\{(\w+)(?::?([-?])([^}]*))?\}|(\w+))")
"""``${NAME}``, ``${NAME:-default}``, ``${NAME:?message}`` or ``$NAME``; ``$$`` is a dollar."""
SECRETS = {"JWT_SECRET_KEY", "POSTGRES_PASSWORD", "VALKEY_PASSWORD"}
OPTIONS = {name.upper() for name in Settings.model_fields}


def code() -> str:
    return "\n".join(line for line in TEXT.splitlines() if not line.lstrip().startswith("#"))


def used() -> list[tuple[str, str, str]]:
    """Name, kind (``-``, ``?`` or nothing) and default or message of each variable that the file asks for."""
    return [(m[1] or m[4], m[2] or "", m[3] or "") for m in VARIABLE.finditer(code())]


def documented() -> set[str]:
    """What ``.env.example`` names: options, and the variables of compose as ``# NAME=``."""
    return set(re.findall(r"^(?:# )?([A-Z][A-Z0-9_]*)=", (ROOT / ".env.example").read_text(), re.MULTILINE))


def test_every_variable_is_in_the_example() -> None:
    assert {name for name, _, _ in used()} <= documented()


def test_the_example_names_no_variable_that_nothing_reads() -> None:
    assert documented() == OPTIONS | {name for name, _, _ in used()}


def test_j04_every_secret_is_required_wherever_it_is_used() -> None:
    kinds: dict[str, set[str]] = {}
    for name, kind, _ in used():
        kinds.setdefault(name, set()).add(kind)
    assert {name for name, found in kinds.items() if "?" in found} == SECRETS
    assert all(kinds[name] == {"?"} for name in SECRETS)
    # With a colon an empty value is refused as well, which is what a copied example holds.
    assert code().count(":?") == sum(kind == "?" for _, kind, _ in used())


def test_no_variable_but_plain_numbers_and_addresses_has_a_default() -> None:
    assert {name: default for name, kind, default in used() if kind == "-"} == {
        "WORKERS": "2",
        "HOST": "127.0.0.1",
        "PORT": "8000",
    }


def test_no_secret_is_written_into_the_file() -> None:
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|AUTH|KEY|TOKEN", key):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), f"{name}: {key}"
    for user, password in re.findall(r"//([^:/@\s]*):(\$\{[^}]*\}|[^@\s]+)@", code()):
        assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", password), f"the password of {user!r}"
    command = SERVICES["valkey"]["command"]
    assert re.fullmatch(r"\$\{VALKEY_PASSWORD:\?[^}]+\}", command[command.index("--requirepass") + 1])


def test_the_api_is_given_options_that_exist() -> None:
    environment = SERVICES["api"]["environment"]
    assert set(environment) <= OPTIONS
    assert all(isinstance(value, str) for value in environment.values()), "YAML would change a bare number or word"


@pytest.mark.parametrize("secret", sorted(SECRETS))
def test_the_options_of_the_api_are_valid_and_need_each_secret(secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"JWT_SECRET_KEY": "j" * 3, "POSTGRES_PASSWORD": "0a1b", "VALKEY_PASSWORD": "2c3d"}

    def filled(match: re.Match[str]) -> str:
        return given.get(match[1], match[3] if match[2] == "-" else "")

    for name, value in SERVICES["api"]["environment"].items():
        monkeypatch.setenv(name, VARIABLE.sub(filled, value))
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    assert any(given[secret] in value for value in settings.secret_values())
    assert (settings.host, settings.port, settings.workers) == ("0.0.0.0", 8000, 2)


def test_every_service_has_a_health_check_that_runs_without_a_shell_of_the_host() -> None:
    for name, service in SERVICES.items():
        check = service["healthcheck"]
        assert check["test"][0] in {"CMD", "CMD-SHELL"}, name
        assert {"interval", "timeout", "retries"} <= set(check), name


def test_the_api_starts_when_its_servers_are_healthy() -> None:
    assert SERVICES["api"]["depends_on"] == {
        "postgres": {"condition": "service_healthy"},
        "valkey": {"condition": "service_healthy"},
    }


def test_the_api_has_longer_to_stop_than_it_takes() -> None:
    grace = SERVICES["api"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > Settings(_env_file=None).shutdown_grace_seconds + 5  # type: ignore[call-arg]


def test_only_the_api_can_be_reached_and_by_default_from_this_machine_alone() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["api"]
    assert SERVICES["api"]["ports"] == ["${HOST:-127.0.0.1}:${PORT:-8000}:8000"]
    assert COMPOSE["networks"]["backend"]["internal"] is True
    assert SERVICES["postgres"]["networks"] == SERVICES["valkey"]["networks"] == ["backend"]


def test_the_data_are_in_named_volumes() -> None:
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    assert sorted(mounts) == ["data:/data", "postgres:/var/lib/postgresql"]
    assert set(COMPOSE["volumes"]) == {"data", "postgres"}


def test_images_name_their_major_version_and_no_registry() -> None:
    for service in SERVICES.values():
        repository, _, tag = service["image"].partition(":")
        assert re.match(r"\d", tag), service["image"]
        assert "." not in repository.partition("/")[0], service["image"]
    assert SERVICES["postgres"]["image"] == "postgres:18"
