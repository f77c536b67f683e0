"""Rerank: the merged candidates in the order of a reranker, or in their own when there is none or it fails."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from backend.errors import ProviderError
from backend.infra.rerank import HttpReranker, NoReranker, Ranked, Reranker
from backend.log import get_logger
from backend.rag.config import RagConfig
from backend.rag.retrieve import Candidate

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Reranked:
    """What is kept, best first, and the trace fields of this stage. ``applied``: the reranker's order was used."""

    candidates: list[Candidate]
    applied: bool
    trace: dict[str, Any]


def build_reranker(config: RagConfig) -> Reranker:
    """The reranker that ``config`` names; connects nowhere."""
    if config.rerank_base_url is None:
        return NoReranker()
    return HttpReranker(
        config.rerank_base_url,
        model=config.rerank_model,
        api_key=config.rerank_api_key.get_secret_value() if config.rerank_api_key else None,
        timeout_seconds=config.rerank_timeout_seconds,
    )


async def rerank(reranker: Reranker, config: RagConfig, query: str, found: Sequence[Candidate]) -> Reranked:
    """The best ``retrieval_top_k`` of ``found``; of those that were reranked, the ones at or above the score floor.

    Never raises for a fault of the reranker: the order of ``found`` stays, and ``rerank_error`` holds its code.
    """
    top_k = config.retrieval_top_k
    ranked: list[Ranked] | None = None
    error: str | None = None
    if found:
        try:
            ranked = await reranker.rerank(query, [candidate.text for candidate in found], top_k)
        except ProviderError as fault:
            _log.warning("rerank_failed", code=fault.code)
            error = fault.code
    if ranked is None:
        chosen = list(found[:top_k])
        kept = chosen
    else:
        chosen = [replace(found[item.index], rerank_score=item.score) for item in ranked]
        kept = [one for item, one in zip(ranked, chosen, strict=True) if item.score >= config.rerank_min_score]
    trace: dict[str, Any] = {
        "rerank_enabled": reranker.enabled,
        "rerank_applied": ranked is not None,
        "candidate_count": len(found),
        "post_rerank_count": len(chosen),
        "post_threshold_count": len(kept),
    }
    if reranker.enabled:
        trace |= {
            "rerank_model": reranker.model,
            "rerank_endpoint": reranker.endpoint,
            "rerank_error": error,
            "rerank_timeout_seconds": config.rerank_timeout_seconds,
            "rerank_min_score": config.rerank_min_score,
        }
    return Reranked(kept, ranked is not None, {key: value for key, value in trace.items() if value is not None})
