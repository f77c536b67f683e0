"""The published description of the API: what the framework derives, with the events of the streams and error codes."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from backend.schemas.export import TITLE, event_schemas

STREAM, CHAT = "text/event-stream", "/chat/"
"""The streams whose events are `ChatEvent`s, and where they are."""
_COMPONENTS = "#/components/schemas/"


def install_openapi(app: FastAPI) -> None:
    """Make ``app`` publish the whole description."""
    derive = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(derive())
        return app.openapi_schema

    app.openapi = openapi


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    union, events = event_schemas(_COMPONENTS + "{model}")
    components: dict[str, Any] = document["components"]["schemas"]
    components[TITLE] = union
    components.update(events)
    for content in _contents(document):
        if STREAM in content:
            content[STREAM] = {"schema": {"$ref": _COMPONENTS + TITLE}}
    return document


def _contents(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path, operations in document["paths"].items():
        if not path.startswith(CHAT):
            continue
        for operation in operations.values():
            for response in operation["responses"].values():
                yield response.get("content", {})
