"""The published schema of the events is the one that is sent."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from backend.schemas.chat import ErrorEvent, GapEvent, RagStep, RagStepEvent, encode_event
from backend.schemas.export import event_schemas, export

COMMITTED = Path(__file__).parents[2] / "docs" / "events.schema.json"


def test_the_committed_file_is_the_export() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == export(), "write it anew: make schema"


def test_references_are_made_as_asked() -> None:
    union, definitions = event_schemas("#/x/{model}")
    names = {variant["$ref"].removeprefix("#/x/") for variant in union["oneOf"]}
    assert names <= definitions.keys()
    assert {"RunStartedEvent", "GapEvent", "ErrorEvent"} <= names


@pytest.mark.parametrize(
    "event",
    [
        GapEvent(seq=3, from_=1, to=3, content="so far"),
        ErrorEvent(seq=1, code="provider_timeout", content="late", retryable=True),
        ErrorEvent(seq=1, code="provider_rate_limited", content="busy", retryable=True, retry_after=2.5),
        RagStepEvent(seq=2, step=RagStep(icon="🔍", label="l", detail="", elapsed_ms=1, stage_elapsed_ms=1)),
    ],
)
def test_what_is_sent_is_valid(event: Any) -> None:
    jsonschema_rs.validate(json.loads(export()), json.loads(encode_event(event)))


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content", "content": "x"},
        {"seq": 1, "content": "x"},
        {"type": "content", "seq": 1, "content": "x", "more": 1},
        {"type": "error", "seq": 1, "code": "no_such_code", "content": "", "retryable": False},
        {"type": "trace", "seq": 1, "rag_trace": {"no_such_field": 1}},
        {"type": "gap", "seq": 1, "from_": 1, "to": 2, "content": ""},
        {"type": "unknown", "seq": 1},
    ],
)
def test_what_is_never_sent_is_not(event: dict[str, Any]) -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(json.loads(export()), event)
