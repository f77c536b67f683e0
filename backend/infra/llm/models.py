"""The chat models of one process, by what they are for."""

from dataclasses import dataclass

from langchain_core.language_models import BaseChatModel

from backend.infra.config import ModelConfig
from backend.infra.llm.endpoint import provider_client
from backend.infra.llm.openai import OpenAIModel, openai_model

EXTRACTIVE = "extractive"


@dataclass(frozen=True)
class ChatModels:
    """``main`` answers, ``fast`` plans and rewrites, ``grade`` judges passages; ``name`` is that of ``main``.

    ``fallback`` answers when the provider is down (``LLM_FALLBACK=extractive``), else None. Only ``main`` hands its
    tokens on; the others are awaited whole.
    """

    main: BaseChatModel
    fast: BaseChatModel
    grade: BaseChatModel
    name: str
    fallback: BaseChatModel | None = None

    @property
    def extractive(self) -> bool:
        """Whether there is no provider: nothing has a window, and nothing is spent."""
        return self.name == EXTRACTIVE

    async def aclose(self) -> None:
        """Closes the connections to the provider. May be called twice."""
        if isinstance(self.main, OpenAIModel):
            await self.main.aclose()  # the three share one HTTP client


def build_models(config: ModelConfig, extractive: BaseChatModel) -> ChatModels:
    """The models that ``config`` names: grade falls back to fast, fast to main; without a provider all are
    ``extractive``. Connects to nothing."""
    if config.llm_base_url is None or config.llm_model is None:
        return ChatModels(main=extractive, fast=extractive, grade=extractive, name=EXTRACTIVE)
    http = provider_client(config)
    fast = config.llm_fast_model or config.llm_model
    return ChatModels(
        main=openai_model(config, model=config.llm_model, http=http),
        fast=openai_model(config, model=fast, streaming=False, http=http),
        grade=openai_model(config, model=config.llm_grade_model or fast, streaming=False, http=http),
        name=config.llm_model,
        fallback=extractive if config.llm_fallback == "extractive" else None,
    )
