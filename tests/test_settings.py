"""Options: what the documentation says is what the program reads, and a wrong value names its variable."""

from pathlib import Path

import pytest
from dotenv import dotenv_values

from backend.settings import Settings, SettingsError, load_settings

EXAMPLE = Path(__file__).parents[1] / ".env.example"


def test_env_example_names_every_option_once_and_no_other() -> None:
    lines = [line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith("#")]
    names = [line.partition("=")[0] for line in lines]
    assert len(names) == len(set(names))
    assert set(names) == {name.upper() for name in Settings.model_fields}


def test_env_example_holds_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in dotenv_values(EXAMPLE):
        monkeypatch.delenv(name, raising=False)
    assert load_settings(EXAMPLE).model_dump() == Settings(_env_file=None).model_dump()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "eighty"),
        ("PORT", "70000"),
        ("WORKERS", "0"),
        ("DATABASE_URL", "mysql://u:hunter2@h/d"),
        ("REDIS_URL", "http://hunter2@h"),
        ("LLM_BASE_URL", "ftp://hunter2"),
        ("LLM_FALLBACK", "hunter2"),
        ("LEASE_SECONDS", "-1"),
        ("RETRIEVAL_TOP_K", "many"),
        ("RETRIEVAL_CANDIDATE_K", "hunter2"),
        ("AUTO_MERGE_ENABLED", "perhaps"),
        ("EVENT_MEMORY_LOG", "hunter2"),
        ("WEATHER_PROVIDER", "hunter2"),
        ("MAX_BODY_BYTES", "1.5"),
        ("CORS_ORIGINS", "not an origin"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(None)
    text = str(caught.value)
    assert name in text
    assert "\n" not in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"LLM_BASE_URL": "http://127.0.0.1:1/v1"}, "LLM_MODEL"),
        ({"EMBEDDING_BASE_URL": "http://127.0.0.1:1/v1"}, "EMBEDDING_MODEL"),
        ({"WEATHER_PROVIDER": "amap"}, "WEATHER_API_KEY"),
    ],
)
def test_a_missing_value_is_named(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], missing: str) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=missing):
        load_settings(None)


def test_an_empty_value_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    monkeypatch.setenv("PORT", "")
    settings = load_settings(None)
    assert settings.database_url is None
    assert settings.port == 8000


def test_an_env_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "options.env").write_bytes(b"PORT=\xff\xfe\n")
    with pytest.raises(SettingsError, match=r"options\.env: not UTF-8"):
        load_settings(tmp_path / "options.env")
