"""What every schema shares."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from backend.text import clean_json


class StrictSchema(BaseModel):
    """Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class RequestSchema(StrictSchema):
    """A body from a client: every text in it is cleaned before it is validated."""

    @model_validator(mode="before")
    @classmethod
    def _clean(cls, value: Any) -> Any:
        return clean_json(value)
