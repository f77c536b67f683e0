"""Spans of a real turn, as a collector receives them."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from pydantic import SecretStr
from sqlalchemy import URL

from backend import tracing
from tests.acceptance.running import running
from tests.support.fake_llm import status, text, tool_call


class Collector:
    """An OTLP receiver over HTTP."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.paths: set[str] = set()
        self.keys: set[str | None] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.bodies.append(self.rfile.read(int(self.headers["content-length"])))
                collector.paths.add(self.path)
                collector.keys.add(self.headers["x-key"])
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing on standard error."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    @property
    def spans(self) -> list[Span]:
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        resources = [resource for request in requests for resource in request.resource_spans]
        return [span for resource in resources for scope in resource.scope_spans for span in scope.spans]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join(60)
    made.server.server_close()
    assert not thread.is_alive(), "the collector did not end"


async def test_a_turn_is_a_tree_of_spans_without_a_word_of_it(
    postgres_url: URL, valkey_url: str, worker_id: str, collector: Collector
):
    exported: dict[str, Any] = {
        "model_titles": False,  # a call of its own, after the turn
        "otel_exporter_otlp_endpoint": collector.url,
        "otel_exporter_otlp_headers": SecretStr("x-key=kanarie"),
        "otel_service_name": "chat-backend",
    }
    async with (
        running(postgres_url, valkey_url, f"spans_{worker_id}", **exported) as at,
        at.user() as alice,
    ):
        await alice.http.post("/documents/upload", files={"file": ("kanarie.txt", b"The kanarie sings at 24 bar.")})
        at.llm.script(tool_call("search_knowledge_base", {"query": "kanarie"}), text("The kanarie sings [1]."))
        seen = await alice.ask("Does the kanarie sing?", "kanarie")
        at.llm.script(status(400, {"error": {"message": "kanarie"}}))
        failed = await alice.ask("Does the kanarie sing?", "kanarie")
    assert (collector.paths, collector.keys) == ({"/v1/traces"}, {"kanarie"})
    assert b"chat-backend" in collector.bodies[0]
    for body in collector.bodies:
        assert b"kanarie" not in body

    whole, broken = (_tree(collector.spans, stream.run_id) for stream in (seen, failed))
    assert whole["turn"] == {"history", "agent", "finish"}
    assert whole["agent"] == {"model", "plan", "retrieve", "merge", "rerank", "grade"}
    assert whole["retrieve"] == {"embed", "search", "load"}
    assert broken == {"turn": {"history", "agent", "finish"}, "agent": {"model"}}
    errors = {span.name: _attributes(span).get("error.type") for span in collector.spans if _attributes(span)}
    assert errors["agent"] == failed.one("error")["code"]


def _attributes(span: Span) -> dict[str, str]:
    return {item.key: item.value.string_value for item in span.attributes}


def _tree(spans: list[Span], run_id: str) -> dict[str, set[str]]:
    """The names of the children, by the name of their parent, of the turn ``run_id``."""
    (root,) = [span for span in spans if _attributes(span).get("run_id") == run_id]
    assert (root.name, root.parent_span_id) == ("turn", b"")
    names = {span.span_id: span.name for span in spans if span.trace_id == root.trace_id}
    tree: dict[str, set[str]] = {}
    for span in spans:
        if span.span_id in names and span is not root:
            tree.setdefault(names[span.parent_span_id], set()).add(span.name)
    return tree


def test_without_an_endpoint_there_is_no_span() -> None:
    assert tracing._tracer is None
    with tracing.stage("plan"):
        pass


def test_a_missing_extra_is_one_line_that_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_EXPORTER", "opentelemetry.exporter.absent")
    tracing.check_tracing(None)
    with pytest.raises(tracing.TracingError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT.*citewire\[otel\]"):
        tracing.check_tracing("http://127.0.0.1:4318")


async def test_a_collector_that_is_away_costs_no_turn(postgres_url: URL, valkey_url: str, worker_id: str):
    nowhere = {"otel_exporter_otlp_endpoint": "http://127.0.0.1:9"}
    async with running(postgres_url, valkey_url, f"nospans_{worker_id}", **nowhere) as at, at.user() as alice:
        assert (await alice.ask()).one("done")["status"] == "completed"
