"""The events of the streams as JSON schema: for the OpenAPI document and for ``docs/events.schema.json``.

``python -m backend.schemas.export`` writes that file's text to standard output.
"""

import json
import sys
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from backend.schemas.chat import ChatEvent

JsonSchema = dict[str, Any]
TITLE = "ChatEvent"
DESCRIPTION = (
    "One event of a stream: the JSON of one `data:` line. The last line of a stream is the literal `[DONE]`, which is "
    "no event. Later versions may add types and fields; ignore what you do not know."
)
_EVENTS: TypeAdapter[ChatEvent] = TypeAdapter(Annotated[ChatEvent, Field(discriminator="type")])


def event_schemas(reference: str = "#/$defs/{model}") -> tuple[JsonSchema, dict[str, JsonSchema]]:
    """The union of all events, and the schemas that it refers to, by name; ``reference`` is how references look."""
    union = _EVENTS.json_schema(mode="serialization", ref_template=reference)
    definitions: dict[str, JsonSchema] = union.pop("$defs")
    return {"title": TITLE, "description": DESCRIPTION, **union}, definitions


def export() -> str:
    """The text of ``docs/events.schema.json``."""
    union, definitions = event_schemas()
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **union, "$defs": definitions}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(export())
