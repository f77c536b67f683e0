"""The chat models of one process, by what they are for."""

from dataclasses import dataclass

from langchain_core.language_models import BaseChatModel

from backend.infra.config import ModelConfig
from backend.infra.llm.endpoint import Endpoint
from backend.infra.llm.fallback import FallbackModel
from backend.infra.llm.openai import openai_model

EXTRACTIVE = "extractive"


@dataclass(frozen=True)
class ChatModels:
    """``main`` answers, ``fast`` plans and rewrites, ``grade`` judges passages; ``name`` is that of ``main``.

    Only ``main`` hands its tokens on; the others are awaited whole.
    """

    main: BaseChatModel
    fast: BaseChatModel
    grade: BaseChatModel
    name: str
    endpoint: Endpoint | None = None

    @property
    def extractive(self) -> bool:
        """Whether there is no provider: nothing has a window, and nothing is spent."""
        return self.name == EXTRACTIVE

    async def aclose(self) -> None:
        """Closes the connections to the provider. May be called twice."""
        if self.endpoint is not None:
            await self.endpoint.aclose()


def build_models(config: ModelConfig, extractive: BaseChatModel) -> ChatModels:
    """The models that ``config`` names: grade falls back to fast, fast to main; without a provider all are
    ``extractive``, and with ``LLM_FALLBACK=extractive`` it stands in for ``main``. Connects to nothing."""
    if config.llm_base_url is None or config.llm_model is None:
        return ChatModels(main=extractive, fast=extractive, grade=extractive, name=EXTRACTIVE)
    endpoint = Endpoint(config)
    fast = config.llm_fast_model or config.llm_model
    main = openai_model(config, model=config.llm_model, endpoint=endpoint)
    stands_in = config.llm_fallback == "extractive"
    return ChatModels(
        main=FallbackModel(main=main, fallback=extractive, streaming=True) if stands_in else main,
        fast=openai_model(config, model=fast, streaming=False, endpoint=endpoint),
        grade=openai_model(config, model=config.llm_grade_model or fast, streaming=False, endpoint=endpoint),
        name=config.llm_model,
        endpoint=endpoint,
    )
