"""Whether the endpoints of models can be reached, and take the key; each is asked as little as can be."""

import asyncio
from typing import Any, cast

import httpx

from backend.cli.findings import Finding, failed, ok, warn
from backend.errors import ProviderError
from backend.infra.embedding import Embedder, create_embedder
from backend.rag.rerank import build_reranker
from backend.settings import Settings

SECONDS = 15.0
_REASONS = {
    "provider_unavailable": "cannot be reached",
    "provider_timeout": "did not answer in time",
    "provider_rejected": "refused the key, the model or the request",
    "provider_protocol": "answered something else than it should",
    "provider_rate_limited": "says that there were too many requests",
}


async def check_embedder(settings: Settings) -> tuple[Embedder | None, Finding]:
    """The embedder, if it can be had; its vectors are tried with one word."""
    what = "Embeddings"
    try:
        embedder = await asyncio.to_thread(create_embedder, settings)
    except (OSError, ImportError, RuntimeError) as error:
        return None, failed(what, f"the built-in model cannot be loaded ({type(error).__name__})", "make install")
    if settings.embedding_base_url is None:
        await embedder.embed_query("ping")
        return embedder, ok(what, f"{embedder.name}, built in")
    try:
        async with asyncio.timeout(SECONDS):
            await embedder.embed_query("ping")
    except (ProviderError, TimeoutError) as error:
        names = "EMBEDDING_BASE_URL, EMBEDDING_API_KEY, EMBEDDING_MODEL and EMBEDDING_DIMENSIONS"
        return embedder, failed(what, f"{settings.embedding_base_url} {_reason(error)}", f"check {names} in .env")
    return embedder, ok(what, f"{embedder.name} at {settings.embedding_base_url} answers")


async def check_reranker(settings: Settings) -> Finding:
    """The rerank service, if there is one, with one word."""
    what = "Reranking"
    reranker = build_reranker(settings)
    try:
        if not reranker.enabled:
            return ok(what, "off")
        await reranker.rerank("ping", ["ping"], 1)
    except ProviderError as error:
        names = "RERANK_BASE_URL, RERANK_API_KEY and RERANK_MODEL"
        return failed(what, f"{reranker.endpoint} {_reason(error)}", f"check {names} in .env")
    finally:
        await reranker.aclose()
    return ok(what, f"{reranker.endpoint} answers")


async def check_chat_model(settings: Settings) -> Finding:
    """The chat model: the endpoint's list of models, or one token where it has none."""
    what = "Chat model"
    if settings.llm_base_url is None:
        return ok(what, "none; answers are quotations from the documents")
    key = settings.llm_api_key
    headers = {"Authorization": f"Bearer {key.get_secret_value()}"} if key is not None else {}
    url = settings.llm_base_url
    try:
        async with asyncio.timeout(SECONDS), httpx.AsyncClient(headers=headers, timeout=SECONDS) as client:
            listed = await client.get(f"{url}/models")
            if listed.status_code == 200:
                return _named_models(settings, listed)
            if listed.status_code in {401, 403}:
                return failed(what, f"{url} refused the key", "check LLM_API_KEY in .env")
            body = {"model": settings.llm_model, "max_tokens": 1, "messages": [{"role": "user", "content": "ping"}]}
            tried = await client.post(f"{url}/chat/completions", json=body)
    except (httpx.HTTPError, TimeoutError) as error:
        return failed(what, f"{url} cannot be reached ({type(error).__name__})", f"curl -i {url}/models")
    if tried.status_code == 200:
        return ok(what, f"{settings.llm_model} at {url} answers")
    if tried.status_code in {401, 403}:
        return failed(what, f"{url} refused the key", "check LLM_API_KEY in .env")
    return failed(
        what, f"{url} answers {settings.llm_model} with status {tried.status_code}", "check LLM_MODEL in .env"
    )


def _named_models(settings: Settings, listed: httpx.Response) -> Finding:
    what, url = "Chat model", settings.llm_base_url
    known = _model_ids(listed)
    wanted = {settings.llm_model, settings.llm_fast_model, settings.llm_grade_model} - {None}
    absent = sorted(str(name) for name in wanted if name not in known)
    if known and absent:
        return warn(what, f"{url} does not list {', '.join(absent)}", "check LLM_MODEL in .env")
    return ok(what, f"{settings.llm_model} at {url} answers")


def _model_ids(listed: httpx.Response) -> set[str]:
    try:
        body: Any = listed.json()
    except ValueError:
        return set()
    data: Any = cast(dict[str, Any], body).get("data") if isinstance(body, dict) else None
    items = cast(list[Any], data) if isinstance(data, list) else []
    return {str(cast(dict[str, Any], item).get("id")) for item in items if isinstance(item, dict)}


def _reason(error: ProviderError | TimeoutError) -> str:
    return _REASONS.get(error.code, error.code) if isinstance(error, ProviderError) else "did not answer in time"
