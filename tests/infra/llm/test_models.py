"""Which model does what, and the settings that decide it."""

from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from pydantic import ValidationError

from backend.infra.config import ModelConfig
from backend.infra.llm.fallback import FallbackModel
from backend.infra.llm.models import build_models
from backend.infra.llm.openai import OpenAIModel
from tests.support.fake_llm import FakeLLM, text

EXTRACTIVE = FakeListChatModel(responses=["quoted"])
URL = "http://127.0.0.1:9/v1"


def names(config: ModelConfig) -> list[str]:
    models = build_models(config, EXTRACTIVE)
    made = [models.main, models.fast, models.grade]
    assert all(isinstance(model, OpenAIModel) for model in made)
    return [model.model_name for model in made if isinstance(model, OpenAIModel)]


def test_without_a_provider_the_extractive_model_does_everything():
    models = build_models(ModelConfig(llm_base_url="", llm_fallback="extractive"), EXTRACTIVE)
    assert (models.main, models.fast, models.grade) == (EXTRACTIVE, EXTRACTIVE, EXTRACTIVE)
    assert models.name == "extractive"


def test_grade_falls_back_to_fast_and_fast_to_main():
    base: dict[str, Any] = {"llm_base_url": URL, "llm_model": "m"}
    assert names(ModelConfig(**base)) == ["m", "m", "m"]
    assert names(ModelConfig(**base, llm_fast_model="f")) == ["m", "f", "f"]
    assert names(ModelConfig(**base, llm_grade_model="g")) == ["m", "m", "g"]


def test_the_extractive_model_stands_in_only_when_asked_for():
    base: dict[str, Any] = {"llm_base_url": URL, "llm_model": "m"}
    models = build_models(ModelConfig(**base, llm_fallback="extractive"), EXTRACTIVE)
    assert isinstance(models.main, FallbackModel)
    assert models.main.fallback is EXTRACTIVE
    assert (models.name, models.extractive) == ("m", False)
    assert isinstance(models.fast, OpenAIModel)
    assert isinstance(build_models(ModelConfig(**base), EXTRACTIVE).main, OpenAIModel)


async def test_models_share_one_client_and_close_it():
    async with FakeLLM() as llm:
        llm.default = text("ok")
        models = build_models(ModelConfig(llm_base_url=llm.base_url + "/", llm_model="m"), EXTRACTIVE)
        assert [(await model.ainvoke("q")).content for model in (models.main, models.fast)] == ["ok", "ok"]
        await models.aclose()
        await models.aclose()
        assert llm.violations == []


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"llm_base_url": URL}, "LLM_MODEL"),
        ({"llm_base_url": URL, "llm_model": " "}, "LLM_MODEL"),
        ({"llm_base_url": "localhost:8000", "llm_model": "m"}, "LLM_BASE_URL"),
        ({"llm_base_url": "ftp://host/v1", "llm_model": "m"}, "LLM_BASE_URL"),
        ({"llm_base_url": "http://", "llm_model": "m"}, "LLM_BASE_URL"),
        ({"llm_base_url": "http://user:pw@host/v1", "llm_model": "m"}, "LLM_BASE_URL"),
        ({"llm_api_key": "sk-two words"}, "LLM_API_KEY"),
        ({"llm_api_key": "sk-\u201cquoted\u201d"}, "LLM_API_KEY"),
        ({"llm_fallback": "other"}, "llm_fallback"),
        ({"llm_connect_seconds": 0}, "llm_connect_seconds"),
        ({"llm_idle_seconds": -1}, "llm_idle_seconds"),
        ({"llm_total_seconds": "inf"}, "llm_total_seconds"),
        ({"llm_max_calls_per_turn": 0}, "llm_max_calls_per_turn"),
        ({"answer_max_tokens": 0}, "answer_max_tokens"),
    ],
)
def test_wrong_settings_are_refused_by_name(values: dict[str, Any], named: str):
    with pytest.raises(ValidationError) as caught:
        ModelConfig(**values)
    assert named in str(caught.value)


def test_error_of_a_wrong_key_does_not_quote_it():
    with pytest.raises(ValidationError) as caught:
        ModelConfig.model_validate({"llm_api_key": "sk-with space"})
    assert "sk-with" not in str(caught.value)
