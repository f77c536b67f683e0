"""A second query for a question whose own words found nothing good."""

from backend.infra.analyze import sentences
from backend.rag.decisions import DecisionInput, RewriteDecision
from backend.rag.rules.question import ASKS, core
from backend.rag.rules.spelling import respelled


def rewrite_rule(given: DecisionInput) -> RewriteDecision:
    """The core of the question in the spelling of the passages, and the heading of the best of them."""
    asked = respelled(core(_asking_sentence(given.question)), [chunk.text for chunk in given.candidates])
    heading = next((chunk.heading for chunk in given.candidates if chunk.heading), "").rpartition(" > ")[2]
    text = f"{asked} {heading}".strip()
    return RewriteDecision(method="step_back", text=text, reason="the core of the question, near the best passage")


def _asking_sentence(question: str) -> str:
    """The last sentence that asks; the whole when none does."""
    asking = [sentence for sentence in sentences(question) if ASKS.search(sentence)]
    return asking[-1] if asking else question
