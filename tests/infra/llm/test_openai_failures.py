"""Refusals, broken streams, deadlines and retries: always a typed error, never a second run after a token."""

import asyncio
import logging
import socket
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from backend.errors import ProviderError
from backend.infra.llm import openai
from backend.infra.llm.errors import retry_after_seconds
from backend.infra.llm.openai import OpenAIModel
from tests.infra.llm.conftest import KEY, MakeModel, run
from tests.support.fake_llm import (
    FakeLLM,
    Reply,
    chunks,
    close_after,
    hang_after,
    raw,
    reset_after,
    status,
    text,
    wire,
)
from tests.support.fake_llm_replies import Action, delta, event
from tests.support.fault_proxy import FaultProxy

OVERLOADED = {"error": {"message": "overloaded", "type": "server_error", "code": 503}}
HTML = "<!doctype html>\n<html><body>502 Bad Gateway</body></html>\n"
FIVE = [event(delta({"content": f"t{n} "})) for n in range(5)]


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "_BACKOFF_SECONDS", 0.001)


def failure(outcome: Any) -> tuple[str, bool]:
    assert outcome.error is not None
    return outcome.error.code, outcome.error.retryable


IN_STREAM: dict[str, tuple[bytes, str]] = {
    "error_object": (event(OVERLOADED), "provider_unavailable"),
    "rate_limit": (event({"error": {"code": 429, "message": "slow down"}}), "provider_rate_limited"),
    "rate_limit_text": (event({"error": {"code": "rate_limit_exceeded"}}), "provider_rate_limited"),
    "error_string": (event({"error": "boom"}), "provider_unavailable"),
    "object_error": (event({"object": "error", "message": "boom", "code": 500}), "provider_unavailable"),
    "event_error": (b'event: error\ndata: {"message": "boom"}\n\n', "provider_unavailable"),
    "event_error_text": (b"event: error\ndata: overloaded\n\n", "provider_unavailable"),
    "bare_json": (b'{"error": {"message": "boom", "code": 500}}\n', "provider_unavailable"),
    "plain_line": (b"upstream connect error or disconnect\n", "provider_protocol"),
    "plain_line_with_colon": (b"Internal error: out of memory\n", "provider_protocol"),
    "data_line": (b"data: the server had an error\n\n", "provider_protocol"),
    "data_number": (b"data: 17\n\n", "provider_protocol"),
    "html": (HTML.encode(), "provider_protocol"),
    "context": (event({"error": {"code": "context_length_exceeded"}}), "context_too_long"),
    "filter": (event({"error": {"code": "content_filter"}}), "content_filtered"),
    "rejected": (event({"error": {"type": "invalid_request_error"}}), "provider_rejected"),
}


@pytest.mark.parametrize(("bad", "code"), IN_STREAM.values(), ids=IN_STREAM.keys())
async def test_e06_error_after_five_tokens_is_raised_and_not_run_again(
    llm: FakeLLM, model: OpenAIModel, bad: bytes, code: str
):
    llm.script(raw(*FIVE, bad, 600.0))
    outcome = await run(model)
    assert outcome.text == "t0 t1 t2 t3 t4 "
    assert failure(outcome)[0] == code
    assert len(llm.chats) == 1


@pytest.mark.parametrize(("bad", "code"), IN_STREAM.values(), ids=IN_STREAM.keys())
async def test_e06_error_before_the_first_token_is_tried_again_only_if_nothing_was_answered(
    llm: FakeLLM, model: OpenAIModel, bad: bytes, code: str
):
    llm.default = raw(event(delta({"role": "assistant", "content": ""})), bad)
    outcome = await run(model)
    assert outcome.text == ""
    assert failure(outcome)[0] == code
    again = code in ("provider_unavailable", "provider_rate_limited")
    assert len(llm.chats) == (3 if again else 1)


async def test_e06_second_try_succeeds_and_text_comes_once(llm: FakeLLM, model: OpenAIModel):
    llm.script(chunks(delta({"role": "assistant"}), OVERLOADED), status(503), text("the answer"))
    outcome = await run(model)
    assert (outcome.text, outcome.error) == ("the answer", None)
    assert len(llm.chats) == 3


@pytest.mark.parametrize("content_type", ["text/html; charset=utf-8", "text/event-stream", "text/plain"])
async def test_e06_html_with_status_200_is_a_protocol_error(llm: FakeLLM, model: OpenAIModel, content_type: str):
    llm.script(raw(HTML.encode(), content_type=content_type))
    assert failure(await run(model)) == ("provider_protocol", False)
    assert len(llm.chats) == 1


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (raw(*FIVE, end=Action.RESET), "provider_unavailable"),
        (raw(*FIVE, end=Action.CLOSE), "provider_protocol"),
        (close_after(5), "provider_protocol"),
        (hang_after(5), "provider_timeout"),
        (raw(*FIVE, b'data: {"choices": [{"del'), "provider_protocol"),
    ],
)
async def test_a14_stream_that_dies_after_five_tokens_is_a_retryable_error(
    llm: FakeLLM, make_model: MakeModel, reply: Reply, code: str
):
    llm.script(reply)
    outcome = await run(make_model(llm_idle_seconds=2))
    assert len(outcome.tokens) == 5
    assert failure(outcome) == (code, True)
    assert len(llm.chats) == 1


LEAK = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
CONTEXT = {"error": {"message": "This model's maximum context length is 8192 tokens", "type": "x"}}
FILTERED = {"error": {"message": "no", "code": "content_filter"}}
QUOTA = {"error": {"message": "no money", "code": "insufficient_quota", "type": "insufficient_quota"}}
REFUSALS: dict[str, tuple[Reply, str, bool]] = {
    "401": (status(401, LEAK), "provider_rejected", False),
    "401_text": (status(401, f"bad key {KEY}"), "provider_rejected", False),
    "403": (status(403, LEAK), "provider_rejected", False),
    "404": (status(404, {"error": {"message": "The model `x` does not exist"}}), "provider_rejected", False),
    "404_html": (status(404, HTML), "provider_rejected", False),
    "302": (status(302, None, {"location": "/login"}), "provider_rejected", False),
    "400": (status(400, {"error": {"message": "bad", "param": "x"}}), "provider_rejected", False),
    "400_context": (status(400, CONTEXT), "context_too_long", False),
    "413": (status(413), "context_too_long", False),
    "400_filter": (status(400, FILTERED), "content_filtered", False),
    "408": (status(408), "provider_timeout", True),
    "422": (status(422, {"detail": [{"loc": ["body"], "msg": "x"}]}), "provider_rejected", False),
    "429_quota": (status(429, QUOTA), "provider_rate_limited", False),
    "200_empty": (status(200), "provider_protocol", True),
    "200_json": (status(200, {}), "provider_protocol", True),
    "200_json_text": (status(200, [1]), "provider_protocol", True),
    "not_http": (wire(b"SSH-2.0-OpenSSH_9.6\r\n"), "provider_unavailable", True),
}


@pytest.mark.parametrize(("reply", "code", "retryable"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_e12_refusal_is_a_typed_error(llm: FakeLLM, model: OpenAIModel, reply: Reply, code: str, retryable: bool):
    llm.default = reply
    assert failure(await run(model)) == (code, retryable)
    assert len(llm.chats) == (3 if code == "provider_unavailable" else 1)


@pytest.mark.parametrize("body", [None, HTML, OVERLOADED, b"\xff\xfe"])
@pytest.mark.parametrize("number", [500, 502, 503, 504, 529])
async def test_e12_server_error_is_tried_three_times(llm: FakeLLM, model: OpenAIModel, number: int, body: Any):
    llm.default = status(number, body)
    assert failure(await run(model)) == ("provider_unavailable", True)
    assert len(llm.chats) == 3


async def test_e12_server_error_that_passes_is_not_seen(llm: FakeLLM, model: OpenAIModel):
    llm.script(status(500, HTML), reset_after(0), text("fine"))
    assert (await run(model)).text == "fine"


async def test_e12_refused_connection(make_model: MakeModel):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        assert failure(await run(make_model(llm_base_url=url))) == ("provider_unavailable", True)


async def test_e12_unknown_host(make_model: MakeModel):
    outcome = await run(make_model(llm_base_url="http://nowhere.invalid/v1"))
    assert failure(outcome) == ("provider_unavailable", True)


async def test_e12_black_hole_is_a_timeout_and_not_tried_again(llm: FakeLLM, make_model: MakeModel):
    async with FaultProxy(("127.0.0.1", llm.port)) as proxy:
        proxy.blackhole()
        model = make_model(
            llm_base_url=f"http://127.0.0.1:{proxy.port}/v1", llm_connect_seconds=1, llm_first_byte_seconds=0.3
        )
        assert failure(await run(model)) == ("provider_timeout", True)
        assert proxy.accepted == 1


async def test_e12_silence_after_the_headers_is_a_timeout(llm: FakeLLM, make_model: MakeModel):
    llm.script(raw(600.0))
    outcome = await run(make_model(llm_connect_seconds=1, llm_first_byte_seconds=0.3))
    assert failure(outcome) == ("provider_timeout", True)
    assert len(llm.chats) == 1
    await asyncio.wait_for(llm.chats[0].ended.wait(), 10)
    assert llm.chats[0].closed_by_client


async def test_e12_endless_keep_alives_end_with_the_total_time(llm: FakeLLM, make_model: MakeModel):
    pings = [piece for _ in range(2000) for piece in (b": ping\n\n", 0.02)]
    llm.script(raw(*FIVE, *pings))
    outcome = await run(make_model(llm_total_seconds=2))
    assert len(outcome.tokens) == 5
    assert failure(outcome) == ("provider_timeout", True)


async def test_e12_slow_consumer_is_no_timeout(llm: FakeLLM, make_model: MakeModel):
    llm.script(text("one two three"))
    model = make_model(llm_idle_seconds=1)
    seen: list[str] = []
    async for chunk in model.astream("q"):
        if not seen:
            await asyncio.sleep(1.2)
        seen.append(str(chunk.text))
    assert "".join(seen) == "one two three"


@pytest.mark.parametrize("name", ["401", "401_text", "403"])
async def test_e12_key_is_in_no_error_repr_or_log(
    llm: FakeLLM, model: OpenAIModel, name: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.DEBUG)
    llm.script(REFUSALS[name][0])
    with pytest.raises(ProviderError) as caught:
        await model.ainvoke("q")
    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=False)
    out, err = capfd.readouterr()
    everything = "".join([*shown.format(), repr(caught.value), repr(model), caplog.text, out, err])
    assert KEY not in everything
    assert "provider_error" in everything


@pytest.mark.parametrize("headers", [{"retry-after": "0"}, {"retry-after-ms": "10"}, {}])
async def test_e09_rate_limit_waits_as_told_and_at_most_two_times(
    llm: FakeLLM, model: OpenAIModel, headers: dict[str, str]
):
    llm.default = status(429, {"error": {"message": "slow"}}, headers)
    assert failure(await run(model)) == ("provider_rate_limited", True)
    assert len(llm.chats) == 3


async def test_e09_retry_after_is_obeyed(llm: FakeLLM, model: OpenAIModel):
    llm.script(status(429, None, {"retry-after": "1"}), text("ok"))
    assert (await run(model)).text == "ok"
    first, second = llm.chats
    assert second.time - first.time >= 0.99


async def test_e09_wait_beyond_the_total_time_fails_at_once(llm: FakeLLM, model: OpenAIModel):
    date = format_datetime(datetime.now(UTC) + timedelta(days=1), usegmt=True)
    for value in ("86400", date):
        llm.script(status(429, None, {"retry-after": value}))
        outcome = await asyncio.wait_for(run(model), 30)
        assert failure(outcome) == ("provider_rate_limited", True)
        assert outcome.error is not None
        assert outcome.error.retry_after is not None
        assert outcome.error.retry_after == pytest.approx(86400, abs=60)
    assert len(llm.chats) == 2


def test_e09_retry_after_forms():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    forms: dict[str, float | None] = {
        "2": 2,
        "0.5": 0.5,
        "Thu, 01 Jan 2026 00:00:03 GMT": 3,
        "Wed, 31 Dec 2025 00:00:00 GMT": 0,
        "soon": None,
        "": None,
        "nan": None,
        "-1": None,
    }
    assert {form: retry_after_seconds({"retry-after": form}, now) for form in forms} == forms
    assert retry_after_seconds({"retry-after-ms": "1500", "retry-after": "9"}, now) == 1.5
    assert retry_after_seconds({}, now) is None
