"""Settings of retrieval. Environment names are the upper-case field names; times are in seconds."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, Field, SecretStr, field_validator


@dataclass(frozen=True, slots=True)
class CandidateK:
    """How many candidates are recalled, where the number comes from, and why a setting was not followed."""

    value: int
    source: Literal["env", "multiplier"]
    error: str | None = None


class RagConfig(BaseModel):
    """How many pieces of evidence are looked for, merged and kept. An empty value counts as absent."""

    retrieval_top_k: int = Field(default=8, ge=1, le=50)
    retrieval_candidate_k: int | None = Field(default=None, le=500)
    retrieval_candidate_multiplier: int = Field(default=3, ge=1, le=20)
    auto_merge_enabled: bool = True
    auto_merge_threshold: int = Field(default=2, ge=2, le=100)
    leaf_retrieve_level: int = Field(default=3, ge=1, le=3)
    rerank_base_url: str | None = None
    rerank_api_key: SecretStr | None = None
    rerank_model: str | None = None
    rerank_timeout_seconds: float = Field(default=5, gt=0, le=300)
    rerank_min_score: float = Field(default=0.0, allow_inf_nan=False)

    @field_validator("retrieval_candidate_k", "rerank_base_url", "rerank_api_key", "rerank_model", mode="before")
    @classmethod
    def _blank_is_absent(cls, value: object) -> object:
        return (value.strip() or None) if isinstance(value, str) else value

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
