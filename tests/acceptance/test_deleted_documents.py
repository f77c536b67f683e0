"""A document that was deleted answers nothing more, and old answers do not tell what it said (I06)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.running import Running, running
from tests.support.chat_client import Client
from tests.support.fake_llm import text, tool_call, wait

pytestmark = pytest.mark.asyncio(loop_scope="module")
MARKER = "zebraquartz4711"
QUESTION = "How much does the pump hold?"
SEARCH = tool_call("search_knowledge_base", {"query": QUESTION})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    async with running(postgres_url, valkey_url, f"deleted_{worker_id}") as made:
        yield made


async def upload(client: Client, name: str, content: str) -> None:
    answer = await client.http.post("/documents/upload", files={"file": (name, content.encode())})
    assert answer.status_code == 200, answer.text


async def library(client: Client) -> None:
    await upload(client, "pump.txt", f"The pump {MARKER} holds 24 bar.")
    await upload(client, "tank.txt", "The tank beside the pump holds 900 litres.")


def only_the_tank(message: dict[str, Any]) -> None:
    """The answer that cited both still does, and of the pump nothing else is left."""
    cited = {item["filename"]: item for item in message["citations"]}
    assert set(cited) == {"pump.txt", "tank.txt"}
    assert (cited["pump.txt"]["deleted"], cited["pump.txt"]["quote"]) == (True, "")
    assert "deleted" not in cited["tank.txt"]
    assert cited["tank.txt"]["quote"]
    chunks = {chunk["filename"]: chunk for chunk in message["rag_trace"]["retrieved_chunks"]}
    assert "text" not in chunks["pump.txt"]
    assert chunks["tank.txt"]["text"]
    assert MARKER not in str(message)


async def test_i06_it_is_found_no_more_and_old_answers_keep_its_citation_without_content(at: Running, alice: Client):
    await library(alice)
    at.llm.script(SEARCH, text("24 bar [1], 900 litres [2]."))
    seen = await alice.ask(QUESTION)
    assert MARKER in str(seen.one("trace"))
    assert MARKER in str(await alice.messages())
    assert (await alice.http.delete("/documents/pump.txt")).status_code == 200
    for session in ("s", "new"):
        again = await alice.ask(QUESTION, session)
        assert MARKER not in str(again.events)
        assert [item["filename"] for item in again.one("trace")["rag_trace"]["retrieved_chunks"]] == ["tank.txt"]
    assert MARKER not in str(at.llm.chats[-1].body)
    old = (await alice.messages())[1]
    only_the_tank(old)
    only_the_tank((await alice.get(f"/chat/messages/{old['id']}")).json())
    await alice.ask(QUESTION)  # the copy that Redis holds now was read before
    only_the_tank((await alice.messages())[1])


async def test_i06_deleted_while_its_answer_is_written(at: Running, alice: Client):
    await library(alice)
    at.llm.script(SEARCH, wait(2.0, text("24 bar [1], 900 litres [2].")))
    asking = asyncio.create_task(alice.post("/chat", {"message": QUESTION, "session_id": "s"}))
    await at.llm.wait_for_chats(2)
    assert (await alice.http.delete("/documents/pump.txt")).status_code == 200
    answer = (await asking).json()
    assert (answer["status"], answer["response"]) == ("completed", "24 bar [1], 900 litres [2].")
    only_the_tank(answer)
    only_the_tank((await alice.messages())[1])
    await at.check(turns=1)


async def test_i06_the_same_name_again_is_another_document(at: Running, alice: Client):
    await library(alice)
    at.llm.script(SEARCH, text("24 bar [1], 900 litres [2]."))
    await alice.ask(QUESTION)
    assert (await alice.http.delete("/documents/pump.txt")).status_code == 200
    await upload(alice, "pump.txt", "The pump holds 30 bar.")
    only_the_tank((await alice.messages())[1])
    seen = await alice.ask(QUESTION)
    assert "30 bar" in str(seen.one("trace"))
