"""Models that ask a scripted provider over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from backend.infra.config import ModelConfig
from backend.infra.llm.openai import OpenAIModel, openai_model
from tests.support.fake_llm import FakeLLM


@asynccontextmanager
async def fast_model(llm: FakeLLM) -> AsyncIterator[OpenAIModel]:
    """A model for decisions, its connections closed at the end; nothing that it sent was malformed."""
    model = openai_model(ModelConfig(llm_base_url=llm.base_url, llm_model="fake"), model="fake", streaming=False)
    try:
        yield model
    finally:
        await model.aclose()
    assert llm.violations == []
