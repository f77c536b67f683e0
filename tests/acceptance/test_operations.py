"""What an operator sees of a real server: metrics, logs, spans, readiness."""

import hashlib
import io
import json
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from sqlalchemy import URL

from backend.catalogue import say
from tests.acceptance.running import Running, running
from tests.support.chat_client import Client
from tests.support.fake_llm import hang_after, status, text, tool_call, wait

pytestmark = pytest.mark.asyncio(loop_scope="module")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
EVENTS = Path(__file__).parents[2] / "docs" / "events.schema.json"
SECRET = "kanarie-" + "0815zebra"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    key = SecretStr(SECRET)
    async with running(
        postgres_url, valkey_url, f"operations_{worker_id}", llm_api_key=key, model_titles=False
    ) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Running) -> AsyncIterator[Client]:
    async with at.user("alice-kanarie") as client:
        yield client


class Scrape:
    """One answer of ``/metrics``."""

    def __init__(self, body: str) -> None:
        self.body = body
        self.samples: Samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(body)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples.get((f"citewire_{name}", frozenset(labels.items())), 0.0)

    @property
    def labels(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for _, labels in self.samples:
            for name, value in labels:
                found.setdefault(name, set()).add(value)
        return found


async def scrape(client: httpx.AsyncClient) -> Scrape:
    answer = await client.get("/metrics", headers={"Authorization": ""})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Scrape(answer.text)


async def upload(client: Client, name: str, content: bytes) -> int:
    return (await client.http.post("/documents/upload", files={"file": (name, content)})).status_code


async def test_a_turn_is_counted_by_its_end_with_its_tokens_and_times(at: Running, alice: Client):
    assert await upload(alice, "pump.txt", b"The pump holds 24 bar.") == 200
    assert await upload(alice, "empty.txt", b"") == 422
    before = await scrape(alice.http)
    at.llm.script(tool_call("search_knowledge_base", {"query": "pump"}), text("24 bar [1]."))
    seen = await alice.ask("What does the pump hold?", "metrics")
    at.llm.script(status(400, {"error": {"message": "no"}}))
    failed = await alice.ask("Again?", "metrics")
    after = await scrape(alice.http)

    def grown(name: str, **labels: str) -> float:
        return after(name, **labels) - before(name, **labels)

    assert grown("turns_total", end="completed") == 1
    assert grown("turns_total", end="failed") == 1
    assert grown("turn_errors_total", code=failed.one("error")["code"]) == 1
    usage = seen.one("done")["usage"]
    assert usage["input_tokens"] == 4 * 11  # two calls of the agent, a plan and a grade
    assert grown("tokens_total", kind="input") == usage["input_tokens"] > 0
    assert grown("tokens_total", kind="output") == usage["output_tokens"] > 0
    assert grown("first_token_seconds_count") == 1
    assert grown("stage_seconds_count", stage="turn") == 2
    assert grown("stage_seconds_count", stage="model") == 5  # a plan and a grade beside those of the two turns
    for stage in ("plan", "retrieve", "merge", "rerank", "grade", "embed", "search"):
        assert grown("stage_seconds_count", stage=stage) == 1, stage
    for stage in ("history", "agent", "finish"):
        assert grown("stage_seconds_count", stage=stage) == 2, stage
    assert after("uploads_total", result="ok") >= 1
    assert after("uploads_total", result="empty_document") >= 1
    assert after("http_errors_total", code="empty_document") >= 1
    await at.check(turns=2)


async def test_what_goes_on_now_is_measured_and_ends(at: Running, alice: Client):
    at.llm.script(hang_after(1))
    before = await scrape(alice.http)
    async with alice.stream(session_id="now") as stream:
        await stream.until_type("content")
        during = await scrape(alice.http)
        await alice.stop(stream.run_id)
        await stream.end()
    after = await scrape(alice.http)
    assert (during("active_runs"), during("stream_subscribers")) == (1, 1)
    assert (after("active_runs"), after("stream_subscribers")) == (0, 0)
    assert after("turns_total", end="stopped") - before("turns_total", end="stopped") == 1


async def test_the_cache_the_pool_and_the_loop_are_measured(at: Running, alice: Client):
    await alice.ask(session_id="cached")
    before = await scrape(alice.http)
    for _ in range(3):
        await alice.messages("cached")
    after = await scrape(alice.http)
    hits, misses = (
        after("cache_reads_total", kind="messages", result=result)
        - before("cache_reads_total", kind="messages", result=result)
        for result in ("hit", "miss")
    )
    assert (hits + misses, misses) in {(3, 0), (3, 1)}
    while not (seen := await scrape(alice.http))("loop_lag_seconds_count"):
        pass
    assert seen("database_pool_connections", state="size") == 20
    assert 0 <= seen("database_pool_connections", state="in_use") <= 20


async def test_j12_no_id_no_text_and_no_secret_is_in_metrics_or_openapi(at: Running, alice: Client):
    await upload(alice, "kanarie.txt", b"kanarie sings")
    seen = await alice.ask("kanarie?", "kanarie-session")
    await alice.http.get("/sessions", params={"access_token": "kanarie"})
    page = await scrape(alice.http)
    openapi = (await alice.http.get("/openapi.json")).text
    for shown in (page.body, openapi):
        assert "kanarie" not in shown
        assert SECRET not in shown
        for identifier in (seen.run_id, seen.one("done")["message_id"], str(alice.http.headers["authorization"])[7:]):
            assert identifier not in shown
    assert page.labels.keys() == {"end", "code", "kind", "le", "state", "stage", "result"}
    for name, known in page.labels.items():
        assert name == "le" or all(value.isidentifier() for value in known), name


async def test_the_lines_of_a_turn_carry_its_ids(at: Running, alice: Client, monkeypatch: pytest.MonkeyPatch):
    (handler,) = [item for item in logging.getLogger().handlers if type(item).__module__ == "backend.log"]
    written = io.StringIO()
    monkeypatch.setattr(handler, "stream", written)
    headers = {"X-Request-Id": "asked-by-me"}
    body = {"message": "kanarie", "session_id": "my-private-session"}
    run = (await alice.http.post("/chat", json=body, headers=headers)).json()
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    (line,) = [line for line in lines if line["event"] == "turn_ended"]
    assert line["run_id"] == run["run_id"]
    assert line["session"] == hashlib.sha256(b"my-private-session").hexdigest()[:12]
    assert (line["request_id"], line["status"], line["level"]) == ("asked-by-me", "completed", "info")
    for hidden in ("kanarie", "my-private-session", alice.http.headers["authorization"][7:]):
        assert hidden not in written.getvalue()


async def test_every_event_of_real_streams_is_valid_by_the_published_schema(at: Running, alice: Client):
    assert await upload(alice, "pump.txt", b"The pump holds 24 bar.") == 200
    at.llm.script(tool_call("search_knowledge_base", {"query": "pump"}), text("24 bar [1]."))
    found = await alice.ask("What does the pump hold?", "schema")
    at.llm.script(status(429, {"error": {"message": "no"}}, {"retry-after": "900"}))
    failed = await alice.ask("Again?", "schema")
    at.llm.script(hang_after(1))
    async with alice.stream(session_id="schema") as stopped:
        await stopped.until_type("content")
        await alice.stop(stopped.run_id)
        await stopped.end()
    missed = await alice.replay(found.run_id, 1_000_000)
    validator = jsonschema_rs.validator_for(json.loads(EVENTS.read_text(encoding="utf-8")))
    seen = [event for stream in (found, failed, stopped, missed) for event in stream.events]
    for event in seen:
        validator.validate(event)
    kinds = {"run_started", "rag_step", "session_title", "content", "trace", "citations", "error", "done", "gap"}
    assert {event["type"] for event in seen} == kinds
    assert found.one("citations")["citations"] != []
    assert failed.one("error")["retry_after"] == 900


async def test_a02_no_stream_is_encoded_and_it_begins_before_the_model_does(at: Running, alice: Client):
    at.llm.script(wait(5, text("At last.")))
    alice.http.headers["Accept-Encoding"] = "gzip, br"
    async with alice.stream(session_id="a02") as stream:
        assert stream.response.status_code == 200
        await stream.until_type("run_started")
        await stream.until_type("session_title")
        assert (stream.types, stream.text) == (["run_started", "rag_step", "session_title"], "")
        assert [request.sent for request in at.llm.chats] in ([], [0])
        async with alice.follow(stream.run_id) as other:
            await other.until_type("session_title")
            assert other.text == ""
        await stream.end()
    assert stream.text == "At last."
    replayed = await alice.replay(stream.run_id)
    for response in (stream.response, other.response, replayed.response):
        assert "content-encoding" not in response.headers
        assert response.headers["content-type"].startswith("text/event-stream")
    assert stream.raw.startswith(b"data: {")


async def test_steps_errors_and_the_end_of_a_run_are_in_the_language_asked_for(at: Running, alice: Client):
    assert await upload(alice, "pump.txt", b"The pump holds 24 bar.") == 200
    alice.http.headers["Accept-Language"] = "zh-CN,zh;q=0.9,en;q=0.5"
    at.llm.script(tool_call("search_knowledge_base", {"query": "pump"}), status(400, {"error": {"message": "no"}}))
    seen = await alice.ask("泵的压力是多少？", "zh")
    labels = [event["step"]["label"] for event in seen.of("rag_step")]
    assert labels[:2] == [say("step_received", "zh"), say("step_searching", "zh")]
    error = seen.one("error")
    assert error["content"] == say(error["code"], "zh")
    removed = [await alice.http.delete(path) for path in ("/documents/pump.txt", "/sessions/never")]
    assert [answer.json()[key] for answer, key in zip(removed, ("message", "detail"), strict=True)] == [
        "文档已删除。",
        "未找到。",
    ]
    refused = await alice.get("/chat/messages/unknown")
    assert (refused.json()["code"], refused.json()["detail"]) == ("not_found", "未找到。")
    # the language is kept with the run: another reader in another language gets what was said
    alice.http.headers["Accept-Language"] = "en"
    assert (await alice.replay(seen.run_id)).events == seen.events
    assert (await alice.run(seen.run_id))["error"]["content"] == error["content"]


async def test_ready_names_the_index_and_draining(postgres_url: URL, valkey_url: str, worker_id: str):
    async with running(postgres_url, valkey_url, f"ready_{worker_id}") as at, at.user() as client:
        ready = await client.get("/health/ready")
        everything = {"postgres": "ok", "redis": "ok", "index": "ok"}
        assert (ready.status_code, ready.json()) == (200, {"status": "ok", "dependencies": everything})
        shutil.rmtree(at.data_dir / "index")
        ready = await client.get("/health/ready")
        lost = everything | {"index": "degraded"}
        assert (ready.status_code, ready.json()) == (200, {"status": "degraded", "dependencies": lost})
        assert (await client.get("/sessions")).status_code == 200
        await at.services.chat.drain()
        ready = await client.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "draining")
        refused: Any = (await client.post("/chat", {"message": "hello"})).json()
        assert refused["code"] == "draining"
        assert (await client.get("/health/live")).json() == {"status": "ok"}
