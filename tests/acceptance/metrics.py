"""What a server process says of itself, for tests that cannot look inside."""

import httpx
from prometheus_client.parser import text_string_to_metric_families


async def metric(url: str, name: str) -> float:
    """The sum of the samples of ``citewire_{name}`` at the server of ``url``."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        answer = await client.get("/metrics")
    assert answer.status_code == 200, answer.text
    families = text_string_to_metric_families(answer.text)
    return sum(sample.value for family in families for sample in family.samples if sample.name == f"citewire_{name}")
