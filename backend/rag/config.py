"""Settings of retrieval. Environment names are the upper-case field names; times are in seconds."""

from dataclasses import dataclass
from typing import Literal

import httpx
from pydantic import BaseModel, Field, SecretStr, field_validator


@dataclass(frozen=True, slots=True)
class CandidateK:
    """How many candidates are recalled, where the number comes from, and why a setting was not followed."""

    value: int
    source: Literal["env", "multiplier"]
    error: str | None = None


class RagConfig(BaseModel):
    """How many pieces of evidence are looked for, merged and kept. An empty value counts as absent.

    Without ``rerank_base_url`` nothing is reranked; passages below ``rerank_min_score`` (on the service's own scale)
    are left out. A model step that has not decided within ``decision_timeout_seconds``, a second try included, falls to
    its default (docs/retrieval.md).
    """

    retrieval_top_k: int = Field(default=8, ge=1, le=50)
    retrieval_candidate_k: int | None = Field(default=None, le=500)
    retrieval_candidate_multiplier: int = Field(default=3, ge=1, le=20)
    auto_merge_enabled: bool = True
    auto_merge_threshold: int = Field(default=2, ge=2, le=100)
    leaf_retrieve_level: int = Field(default=3, ge=1, le=3)
    decision_timeout_seconds: float = Field(default=20, gt=0, le=300)
    rerank_base_url: str | None = None
    rerank_api_key: SecretStr | None = None
    rerank_model: str | None = None
    rerank_timeout_seconds: float = Field(default=5, gt=0, le=300)
    rerank_min_score: float = Field(default=0.0, allow_inf_nan=False)

    @field_validator("retrieval_candidate_k", "rerank_base_url", "rerank_api_key", "rerank_model", mode="before")
    @classmethod
    def _blank_is_absent(cls, value: object) -> object:
        return (value.strip() or None) if isinstance(value, str) else value

    @field_validator("rerank_base_url")
    @classmethod
    def _check_rerank_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            url = httpx.URL(value)
        except httpx.InvalidURL:
            raise ValueError("RERANK_BASE_URL is not a URL") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("RERANK_BASE_URL must be an http:// or https:// address")
        if url.userinfo or url.query or url.fragment:  # it is shown in traces
            raise ValueError("RERANK_BASE_URL must be a plain address; the key belongs into RERANK_API_KEY")
        return value.rstrip("/")

    @field_validator("rerank_api_key")
    @classmethod
    def _check_rerank_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not all("!" <= char <= "~" for char in value.get_secret_value()):
            raise ValueError("RERANK_API_KEY holds spaces or characters that no HTTP header can carry")
        return value

    def candidate_k(self) -> CandidateK:
        """The number that is set, if it is not below top k; else top k times the multiplier."""
        fallback = self.retrieval_top_k * self.retrieval_candidate_multiplier
        wanted = self.retrieval_candidate_k
        if wanted is None:
            return CandidateK(fallback, "multiplier")
        if wanted < self.retrieval_top_k:
            error = f"RETRIEVAL_CANDIDATE_K={wanted} is below RETRIEVAL_TOP_K={self.retrieval_top_k}"
            return CandidateK(fallback, "multiplier", error)
        return CandidateK(wanted, "env")
