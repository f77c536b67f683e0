"""Uploads as jobs over HTTP: their shapes, the end of each, and what a killed server leaves."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import orjson
import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
UPLOAD_KEYS = ["upload", "cleanup", "parse", "parent_store", "vector_store"]
DELETE_KEYS = ["prepare", "bm25", "milvus", "parent_store"]
SENTENCE = "The pump of the northern station delivers forty litres a second, as the plan of the works says. " * 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    async with rack(postgres_url, valkey_url, f"jobs_{worker_id}") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Rack) -> AsyncIterator[Rack]:
    if shared.server.returncode is not None:
        await shared.server.start()
    await shared.reset()
    yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    """Not the first account, which is an admin."""
    async with at.user(), at.user() as client:
        yield client


def parts(count: int) -> bytes:
    return "\n\n".join(f"# Part {n}\n\n{SENTENCE}" for n in range(count)).encode()


async def submit(client: Client, name: str, content: bytes) -> str:
    answer = await client.http.post("/documents/upload/async", files={"file": (name, content)})
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"job_id", "filename", "message"}
    return answer.json()["job_id"]


async def job(client: Client, job_id: str, kind: str = "upload") -> dict[str, Any]:
    answer = await client.get(f"/documents/{kind}/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ended(client: Client, job_id: str, kind: str = "upload") -> dict[str, Any]:
    async def over() -> bool:
        return (await job(client, job_id, kind))["status"] in {"completed", "failed"}

    await until(over, 240)
    return await job(client, job_id, kind)


async def test_an_upload_and_a_deletion_step_by_step(at: Rack, alice: Client) -> None:
    job_id = await submit(alice, "plan.md", parts(2))
    info = await ended(alice, job_id)
    assert [step["key"] for step in info["steps"]] == UPLOAD_KEYS
    assert {(step["percent"], step["status"]) for step in info["steps"]} == {(100, "completed")}
    assert (info["status"], info["error"], info["code"], info["warnings"]) == ("completed", None, None, [])
    assert info["processed_chunks"] == info["total_chunks"] > 0
    assert [listed["job_id"] for listed in (await alice.get("/documents/upload/jobs")).json()["jobs"]] == [job_id]
    [document] = (await alice.get("/documents")).json()["documents"]
    assert (document["status"], document["chunk_count"]) == ("ready", info["total_chunks"])

    answer = await alice.http.delete("/documents/delete/async/plan.md")
    assert (await alice.get("/documents")).json()["documents"] == []
    removed = await ended(alice, answer.json()["job_id"], "delete")
    assert [step["key"] for step in removed["steps"]] == DELETE_KEYS
    assert removed["status"] == "completed"
    assert await at.sql("select id from purge_outbox") == []


async def test_j01_jobs_of_others_are_unknown(at: Rack, alice: Client) -> None:
    job_id = await submit(alice, "plan.txt", b"The gate opens at seven.")
    async with at.user() as bob:
        for answer in (
            await bob.get(f"/documents/upload/jobs/{job_id}"),
            await bob.post(f"/documents/upload/jobs/{job_id}/cancel"),
            await bob.get(f"/documents/delete/jobs/{job_id}"),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        assert (await bob.get("/documents/upload/jobs")).json() == {"jobs": []}
    await ended(alice, job_id)


async def test_a_bad_file_fails_with_its_code(at: Rack, alice: Client) -> None:
    info = await ended(alice, await submit(alice, "plan.pdf", b"no PDF at all"))
    assert (info["status"], info["code"], info["current_step"]) == ("failed", "type_mismatch", "parse")
    assert info["error"]
    assert (await alice.get("/documents")).json()["documents"] == []


async def test_b16_killed_while_it_embeds_it_goes_on_at_the_next_start(at: Rack, alice: Client) -> None:
    job_id = await submit(alice, "plan.md", parts(300))

    async def under_way() -> bool:
        return (await job(alice, job_id))["processed_chunks"] > 0

    await until(under_way, 120)
    await at.server.kill9()
    [(stored, attempts)] = await at.sql("select processed_chunks, attempts from jobs")
    await at.server.start()
    assert (await job(alice, job_id))["processed_chunks"] >= stored > 0
    info = await ended(alice, job_id)
    assert (info["status"], info["processed_chunks"]) == ("completed", info["total_chunks"])
    [(total,)] = await at.sql("select attempts from jobs")
    assert (attempts, total) == (1, 2)
    assert await at.sql("select id from purge_outbox") == []


async def test_the_stream_tells_each_change(at: Rack, alice: Client) -> None:
    async with alice.http.stream("GET", "/documents/jobs/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        job_id = await submit(alice, "plan.txt", b"The gate opens at seven.")
        seen: list[dict[str, Any]] = []
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                event = orjson.loads(line.removeprefix("data: "))
                assert event["type"] == "job"
                seen.append(event["job"])
                if event["job"]["status"] == "completed":
                    break
    assert {one["job_id"] for one in seen} == {job_id}


async def test_who_only_waits_for_jobs_asks_the_database_nothing(at: Rack, alice: Client) -> None:
    """Ten streams cost what one does: the look that they share."""

    async def looks() -> int:
        await at.sql("select pg_stat_force_next_flush()")
        rows = await at.sql("select xact_commit from pg_stat_database where datname = current_database()")
        return rows[0][0]

    async def cost(streams: int) -> int:
        async with AsyncExitStack() as stack:
            opened = [alice.http.stream("GET", "/documents/jobs/stream") for _ in range(streams)]
            lines = [(await stack.enter_async_context(one)).aiter_lines() for one in opened]
            await asyncio.gather(*(anext(line) for line in lines))  # the first sign of life: what there was is told
            before = await looks()
            await asyncio.gather(*(anext(line) for line in lines))
            await asyncio.gather(*(anext(line) for line in lines))
            return await looks() - before

    one, ten = await cost(1), await cost(10)
    assert ten < one + 40
