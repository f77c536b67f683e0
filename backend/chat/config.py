"""Options of the chat room."""

from pydantic import BaseModel, NonNegativeInt, PositiveFloat, PositiveInt


class ChatConfig(BaseModel):
    """Limits of messages, prompts, runs and streams; times in seconds unless the name says otherwise."""

    max_message_chars: PositiveInt = 100_000
    max_runs_per_user: PositiveInt = 4
    max_runs_per_worker: PositiveInt = 1_000
    context_messages: NonNegativeInt = 12
    prompt_max_tokens: PositiveInt = 12_000
    subscriber_max_events: PositiveInt = 1_024
    send_timeout_seconds: PositiveFloat = 30
    event_retention_hours: PositiveFloat = 24
    event_memory_log: bool = True
    lease_seconds: PositiveFloat = 10
    shutdown_grace_seconds: PositiveFloat = 15
