"""Options of the chat room."""

import re
from typing import Annotated

from pydantic import BaseModel, NonNegativeInt, PositiveFloat, PositiveInt, field_validator
from pydantic_settings import NoDecode

_HOST = re.compile(r"\*|[a-z0-9-]+(\.[a-z0-9-]+)*")


class ChatConfig(BaseModel):
    """Limits of messages, prompts, runs and streams; times in seconds unless the name says otherwise.

    ``prompt_max_tokens`` holds a prompt and its answer. ``allowed_link_hosts`` (comma separated) are the hosts, with
    those below them, that an answer may link to; ``*`` is every host.
    """

    max_message_chars: PositiveInt = 100_000
    max_runs_per_user: PositiveInt = 4
    max_runs_per_worker: PositiveInt = 1_000
    context_messages: NonNegativeInt = 12
    model_titles: bool = True
    prompt_max_tokens: PositiveInt = 12_000
    subscriber_max_events: PositiveInt = 1_024
    send_timeout_seconds: PositiveFloat = 30
    event_retention_hours: PositiveFloat = 24
    event_memory_log: bool = True
    lease_seconds: PositiveFloat = 10
    shutdown_grace_seconds: PositiveFloat = 15
    allowed_link_hosts: Annotated[tuple[str, ...], NoDecode] = ()

    @field_validator("allowed_link_hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip().lower() for part in value.split(",") if part.strip())
        return value or ()

    @field_validator("allowed_link_hosts")
    @classmethod
    def _check_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_HOST.fullmatch(host) for host in value):
            raise ValueError("ALLOWED_LINK_HOSTS holds something that is no host name (no scheme, port or path)")
        return value
