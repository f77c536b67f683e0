"""A scripted provider and models that call it."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk

from backend.errors import ProviderError
from backend.infra.config import ModelConfig
from backend.infra.llm.openai import OpenAIModel, openai_model
from tests.support.fake_llm import FakeLLM

KEY = "sk-test-0123456789abcdef"

MakeModel = Callable[..., OpenAIModel]


@pytest.fixture
async def llm() -> AsyncIterator[FakeLLM]:
    async with FakeLLM() as fake:
        yield fake
        assert fake.violations == []


@pytest.fixture
async def make_model(llm: FakeLLM) -> AsyncIterator[MakeModel]:
    async with AsyncExitStack() as stack:

        def make(*, streaming: bool = True, **settings: Any) -> OpenAIModel:
            values = {"llm_base_url": llm.base_url, "llm_api_key": KEY, "llm_model": "fake", **settings}
            model = openai_model(ModelConfig(**values), model="fake", streaming=streaming)
            stack.push_async_callback(model.aclose)
            return model

        yield make


@pytest.fixture
def model(make_model: MakeModel) -> OpenAIModel:
    return make_model()


@dataclass
class Outcome:
    """What a streamed call gave: the text, the whole message (None if there was no chunk), the error."""

    tokens: list[str] = field(default_factory=list)
    message: AIMessageChunk | None = None
    error: ProviderError | None = None

    @property
    def text(self) -> str:
        return "".join(self.tokens)


async def run(model: BaseChatModel, prompt: Any = "hi") -> Outcome:
    """Streams one call to its end."""
    outcome = Outcome()
    try:
        async for chunk in model.astream(prompt):
            if chunk.text:
                outcome.tokens.append(str(chunk.text))
            outcome.message = chunk if outcome.message is None else outcome.message + chunk
    except ProviderError as error:
        outcome.error = error
    return outcome
