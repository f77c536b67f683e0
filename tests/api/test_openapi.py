"""The OpenAPI document names every event of the streams and every error code."""

import json
from typing import Any

import pytest
from fastapi import FastAPI

from backend.errors import EVENT_CODES, HTTP_CODES
from backend.schemas.export import event_schemas

Document = dict[str, Any]


@pytest.fixture
def document(app: FastAPI) -> Document:
    return json.loads(json.dumps(app.openapi()))


def answers(document: Document) -> list[tuple[str, str, Document]]:
    return [
        (f"{method} {path}", status, answer)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for status, answer in operation["responses"].items()
    ]


def test_both_streams_refer_to_the_union_of_events(document: Document) -> None:
    streams = {
        route: answer["content"]["text/event-stream"]["schema"]
        for route, status, answer in answers(document)
        if status == "200" and "/chat/" in route and "text/event-stream" in answer.get("content", {})
    }
    reference = {"$ref": "#/components/schemas/ChatEvent"}
    assert streams == {"post /chat/stream": reference, "get /chat/runs/{run_id}/stream": reference}


def test_every_event_is_a_component_and_the_same_as_in_the_exported_file(document: Document) -> None:
    components = document["components"]["schemas"]
    union, events = event_schemas("#/components/schemas/{model}")
    assert components["ChatEvent"] == union
    assert {name: components[name] for name in events} == events


def test_every_error_answer_names_its_codes(document: Document) -> None:
    seen: set[str] = set()
    for route, status, answer in answers(document):
        if int(status) < 400 or route == "get /health/ready":
            continue
        assert list(answer["content"]) == ["application/json"], (route, status)
        schema = answer["content"]["application/json"]["schema"]
        assert schema["$ref"] == "#/components/schemas/ErrorBody"
        codes = schema["properties"]["code"]["enum"]
        assert codes, (route, status)
        assert {HTTP_CODES[code] for code in codes} == {int(status)}
        seen.update(codes)
    # a wrong method has no operation; two can only end a turn, which is an event; one is said of a file in a batch
    assert HTTP_CODES.keys() - seen == {
        "method_not_allowed",
        "context_too_long",
        "content_filtered",
        "too_many_files",
    }


def test_the_codes_are_one_closed_list(document: Document) -> None:
    components = document["components"]["schemas"]
    assert set(components["ErrorBody"]["properties"]["code"]["enum"]) == HTTP_CODES.keys()
    assert set(components["ErrorEvent"]["properties"]["code"]["enum"]) == EVENT_CODES
    assert set(components["ErrorInfo"]["properties"]["code"]["enum"]) == EVENT_CODES


def test_no_reference_leads_nowhere(document: Document) -> None:
    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
            return own.union(*map(references, value.values()))
        return set().union(*map(references, value)) if isinstance(value, list) else set()

    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= names
