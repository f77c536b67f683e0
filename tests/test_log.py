"""What a log line holds, and what it never holds (case J12)."""

import json
import logging
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from backend.log import REDACTED, Redactor, bind_request, bind_run, configure_logging, get_logger

CANARY = "kanarie" + secrets.token_hex(8)
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0." + CANARY


class Stderr:
    """All that was written to stderr so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._seen = ""

    def getvalue(self) -> str:
        self._seen += self._capsys.readouterr().err
        return self._seen


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[Stderr]:
    """stderr of a configured process; the logging of the test run is put back afterwards."""
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.get_config()
    yield Stderr(capsys)
    root.handlers[:], root.level = handlers, level
    structlog.configure(**configured)


def _lines(stream: Stderr) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_json_line_an_event_with_the_ids_of_its_context(stderr: Stderr) -> None:
    configure_logging("info")
    log = get_logger("backend.test")
    with bind_request("r-1"), bind_run("run-1", "my private session"):
        log.info("run_finished", status="completed", tokens=7)
        logging.getLogger("some.library").warning("slow %s", "query")
    log.debug("not_shown")
    log.info("later")
    inside, library, later = _lines(stderr)
    assert (inside["event"], inside["level"], inside["logger"]) == ("run_finished", "info", "backend.test")
    assert (inside["request_id"], inside["run_id"], inside["status"], inside["tokens"]) == (
        "r-1",
        "run-1",
        "completed",
        7,
    )
    assert inside["timestamp"].endswith("Z")
    assert len(inside["session"]) == 12
    assert "private" not in stderr.getvalue()
    assert (library["event"], library["request_id"]) == ("slow query", "r-1")
    assert "request_id" not in later


def test_j12_before_it_is_configured_nothing_is_shown_either(stderr: Stderr) -> None:
    password = CANARY
    try:
        raise ValueError(f"password={password}")
    except ValueError as error:
        get_logger("x").error("crashed", exc_info=error, token=CANARY)
    assert CANARY not in stderr.getvalue()
    assert "ValueError" in _lines(stderr)[0]["exception"]


def test_the_level_counts_and_the_last_call_wins(stderr: Stderr) -> None:
    configure_logging("debug")
    configure_logging("warning")
    get_logger("x").info("not_shown")
    get_logger("x").warning("shown")
    assert [line["event"] for line in _lines(stderr)] == ["shown"]


SECRET_FIELDS: list[dict[str, Any]] = [
    {"authorization": f"Bearer {CANARY}"},
    {"Authorization": CANARY},
    {"password": CANARY},
    {"new_password": CANARY},
    {"passwd": CANARY},
    {"access_token": CANARY},
    {"token": CANARY},
    {"refreshToken": CANARY},
    {"api_key": CANARY},
    {"LLM_API_KEY": CANARY},
    {"x-api-key": CANARY},
    {"apikey": CANARY},
    {"secret": CANARY},
    {"jwt_secret_key": CANARY},
    {"admin_code": CANARY},
    {"set-cookie": CANARY},
    {"dsn": CANARY},
    {"headers": {"Authorization": CANARY, "deep": [{"password": [CANARY]}]}},
    {"headers": [(b"authorization", f"Bearer {CANARY}".encode())]},
    {"url": f"postgresql://user:{CANARY}@db/x"},
    {"url": f"postgresql+asyncpg://:{CANARY}@/x?host=/run"},
    {"url": f"redis://:{CANARY}@cache:6379/0"},
    {"url": f"https://api.test/v1?api_key={CANARY}&x=1"},
    {"text": f"Authorization: Bearer {CANARY}"},
    {"text": f"header was 'bearer {CANARY}'"},
    {"text": f"Incorrect API key provided: sk-{CANARY}"},
    {"text": f"sk-proj-{CANARY}"},
    {"text": f"token was {JWT}"},
    {"text": f'{{"username": "a", "password": "{CANARY}"}}'},
    {"text": f"{{'password': '{CANARY}'}}"},
    {"text": f"password={CANARY} host=db"},
    {"text": f"JWT_SECRET_KEY={CANARY}"},
    {"text": f"api_key='{CANARY} with spaces'"},
    {"object": type("Odd", (), {"__str__": lambda self: f"password={CANARY}"})()},
]


@pytest.mark.parametrize("fields", SECRET_FIELDS, ids=lambda fields: next(iter(fields)))
def test_j12_secrets_are_taken_out_by_key_and_by_shape(stderr: Stderr, fields: dict[str, Any]) -> None:
    configure_logging("debug")
    get_logger("x").info("event", **fields)
    assert CANARY not in stderr.getvalue()
    assert REDACTED in stderr.getvalue()


def test_j12_secrets_in_messages_and_tracebacks_of_libraries(stderr: Stderr) -> None:
    configure_logging("debug")
    library = logging.getLogger("some.library")
    library.info("connecting to %s", f"postgresql://user:{CANARY}@db/x")
    library.info("Authorization: Bearer %s", CANARY)
    password = CANARY
    try:
        raise ValueError(f"no connection with password='{password}'") from OSError(f"sk-{CANARY}")
    except ValueError as error:
        library.exception("failed")
        get_logger("y").error("failed", exc_info=error)
    assert CANARY not in stderr.getvalue()
    assert "ValueError" in _lines(stderr)[-1]["exception"]
    assert "no connection" in _lines(stderr)[-1]["exception"]


def test_j12_the_secrets_of_this_install_are_taken_out_whatever_their_shape(stderr: Stderr) -> None:
    configure_logging("debug", secrets=[CANARY, ""])
    get_logger("x").info(f"odd {CANARY} text", where=f"<{CANARY}>", nested={"a": [f"{CANARY}!"]})
    logging.getLogger("lib").info(CANARY)
    assert CANARY not in stderr.getvalue()


def test_plain_facts_stay(stderr: Stderr) -> None:
    configure_logging("info")
    get_logger("x").info(
        "usage",
        input_tokens=5,
        output_tokens=7,
        token_version=3,
        path="/chat/stream",
        detail="The token budget is 12",
        ok=None,
    )
    line = _lines(stderr)[0]
    assert (line["input_tokens"], line["output_tokens"], line["token_version"]) == (5, 7, 3)
    assert (line["path"], line["detail"], line["ok"]) == ("/chat/stream", "The token budget is 12", None)


def test_access_lines_have_no_query_string(stderr: Stderr) -> None:
    configure_logging("info")
    args = ("127.0.0.1:5", "GET", f"/auth/me?q={CANARY}", "1.1", 401)
    logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', *args)
    assert _lines(stderr)[0]["event"] == '127.0.0.1:5 - "GET /auth/me HTTP/1.1" 401'


def test_j12_libraries_do_not_write_conversations(stderr: Stderr) -> None:
    configure_logging("debug")
    for name in ("openai._base_client", "httpx", "httpcore.http11", "langchain"):
        logging.getLogger(name).debug("Request options: %s", {"content": CANARY})
        logging.getLogger(name).info("HTTP Request: GET http://x/?q=%s", CANARY)
    assert stderr.getvalue() == ""


def test_odd_values_never_break_a_line(stderr: Stderr) -> None:
    configure_logging("info")
    loop: list[Any] = []
    loop.append(loop)
    get_logger("x").info(
        "odd", surrogate="\ud800", huge=10**40, loop=loop, number=float("nan"), raw=b"\xff", line="a\nb"
    )
    assert len(_lines(stderr)) == 1


def test_j12_a_line_that_cannot_be_written_shows_nothing(stderr: Stderr) -> None:
    configure_logging("info")
    logging.getLogger("lib").info("%d " + CANARY, "no number")
    assert CANARY not in stderr.getvalue()
    assert _lines(stderr)[0]["event"] == "log_line_lost"


@pytest.mark.parametrize("piece", ["a", "a-", "a.", "://a:", "eyJaaaaaa-", "password", "x=", "bearer ", "a:b@", "[{'"])
def test_a_long_text_is_cut_and_done(piece: str) -> None:
    text = Redactor().text(piece * 1_000_000)
    assert len(text) < 100_000
    assert text.endswith(("[cut]", REDACTED))
