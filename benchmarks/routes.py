"""The routes that questions take in extractive mode, against the right ones; see docs/extractive.md."""

import asyncio

from benchmarks.harness import report
from tests.rag.routes.measure import measure, questions, repository_documents, table, written_documents


async def main() -> None:
    """The written documents by half, thresholds being set on ``set`` only, and documents not written for it."""
    written = await measure(written_documents(), questions("questions.jsonl"))
    repository = await measure(repository_documents(), questions("repository.jsonl"))
    report(
        "routes",
        "most take the right route on documents that no threshold was set on",
        set=table([outcome for outcome in written if outcome.asked.half == "set"]),
        report=table([outcome for outcome in written if outcome.asked.half == "report"]),
        repository=table(repository),
    )


if __name__ == "__main__":
    asyncio.run(main())
