"""Numbers in an answer: each names the chunk that the model was shown under it, wherever it is read (I07)."""

import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.running import Running, running
from tests.support.chat_client import Client
from tests.support.fake_llm import text, tool_call

pytestmark = pytest.mark.asyncio(loop_scope="module")
FILES = {
    "pump.txt": "The pump holds 24 bar. Pumps are checked each spring.",
    "valve.txt": "The valve of the pump opens at 12 bar.",
    "tank.txt": "The tank beside the pump holds 900 litres.",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    async with running(postgres_url, valkey_url, f"citations_{worker_id}") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def alice(at: Running) -> AsyncIterator[Client]:
    async with at.user() as client:
        for name, content in FILES.items():
            answer = await client.http.post("/documents/upload", files={"file": (name, content.encode())})
            assert answer.status_code == 200, answer.text
        yield client


def shown(at: Running) -> dict[int, str]:
    """What the model was shown in its last request, by number: ``filename: text``."""
    (result,) = [message["content"] for message in at.llm.chats[-1].messages if message["role"] == "tool"]
    found = re.findall(r"^\[(\d+)\] (.*?)(?=\n\n\[|\Z)", result, re.S | re.M)
    return {int(number): passage for number, passage in found}


CODE = "See:\n```\nx = y[1]\n```\nand `b[2]` too."
CASES = [
    pytest.param(["Both [1][2]."], "Both [1][2].", [1, 2], id="two"),
    pytest.param(["None [7] here."], "None  here.", [], id="out of range"),
    pytest.param(["Zero [0]."], "Zero .", [], id="zero"),
    pytest.param(["List [1,2]."], "List [1][2].", [1, 2], id="list"),
    pytest.param(["Some [1, 7]."], "Some [1].", [1], id="list with one out of range"),
    pytest.param(["Named [ID:3]."], "Named [3].", [3], id="ID"),
    pytest.param(["Foot [^1]."], "Foot [1].", [1], id="footnote"),
    pytest.param(["Split [", "1", "], [", "2,", "7", "]", " end"], "Split [1], [2] end", [1, 2], id="split"),
    pytest.param(["At the end ["], "At the end [", [], id="open at the end"),
    pytest.param(["At the end [1"], "At the end [1", [], id="number open at the end"),
    pytest.param([CODE], CODE, [], id="code"),
    pytest.param(["As ", *CODE, " So [2]."], f"As {CODE} So [2].", [2], id="code and a number, by the letter"),
    pytest.param(["The item a[1] is first."], "The item a[1] is first.", [1], id="index"),
    pytest.param(["Long [123456789012]."], "Long [123456789012].", [], id="a long number is text"),
    pytest.param(["Not [a], [link](x), [1.5], [-1]."], "Not [a], [link](x), [1.5], [-1].", [], id="text"),
    pytest.param(["Twice [2] and [2], before [1]."], "Twice [2] and [2], before [1].", [1, 2], id="twice"),
]


@pytest.mark.parametrize(("tokens", "expected", "numbers"), CASES)
async def test_i07_every_number_is_the_chunk_shown_under_it(
    at: Running, alice: Client, tokens: list[str], expected: str, numbers: list[int]
):
    at.llm.script(tool_call("search_knowledge_base", {"query": "pump bar"}), text("", tokens=tokens))
    seen = await alice.ask("How much does the pump hold?", client_message_id="k")
    assert seen.text == expected
    citations = seen.one("citations")["citations"]
    assert [item["index"] for item in citations] == numbers

    passages = shown(at)
    assert sorted(passages) == [1, 2, 3]
    chunks = seen.one("trace")["rag_trace"]["retrieved_chunks"]
    for item in citations:
        passage, chunk = passages[item["index"]], chunks[item["index"] - 1]
        assert passage.startswith(f"{item['filename']}:")
        assert item["quote"] in passage
        assert (item["chunk_id"], item["document_id"]) == (chunk["chunk_id"], chunk["document_id"])

    question, answer = await alice.messages()
    replayed = await alice.replay(seen.run_id)
    again = (
        await alice.post("/chat", {"message": question["content"], "session_id": "s", "client_message_id": "k"})
    ).json()
    one = (await alice.get(f"/chat/messages/{answer['id']}")).json()
    assert answer["content"] == replayed.text == again["response"] == one["content"] == expected
    assert answer["citations"] == again["citations"] == one["citations"] == citations
    assert replayed.one("citations") == seen.one("citations")
    await at.check(turns=1)


async def test_i07_an_awaited_answer_is_filtered_alike(at: Running, alice: Client):
    tokens = ["So [1", "][7] and [ID", ": 2]."]
    at.llm.script(tool_call("search_knowledge_base", {"query": "pump"}), text("", tokens=tokens))
    answer = (await alice.post("/chat", {"message": "pump?"})).json()
    assert answer["response"] == "So [1] and [2]."
    assert [item["index"] for item in answer["citations"]] == [1, 2]
    assert len(at.llm.chats) == 2


async def test_i07_without_a_search_no_number_is_one(at: Running, alice: Client):
    at.llm.script(text("Everyone knows that [1][2]."))
    seen = await alice.ask("pump?")
    assert seen.text == "Everyone knows that ."
    assert seen.one("citations")["citations"] == []


async def test_i07_numbers_of_an_earlier_answer_mean_nothing_later(at: Running, alice: Client):
    at.llm.script(tool_call("search_knowledge_base", {"query": "pump"}), text("It holds 24 bar [1][3]."))
    await alice.ask("pump?")
    at.llm.script(text("As I said [1]."))
    seen = await alice.ask("Are you sure?")
    assert seen.text == "As I said ."
    assert seen.one("citations")["citations"] == []
    assert "It holds 24 bar ." in json.dumps(at.llm.chats[-1].body)
    first = (await alice.messages())[1]
    assert first["content"] == "It holds 24 bar [1][3]."
    assert [item["index"] for item in first["citations"]] == [1, 3]


async def test_i07_a_second_search_of_the_turn_changes_no_number(at: Running, alice: Client):
    at.llm.script(
        tool_call("search_knowledge_base", {"query": "tank litres"}, id="c1"),
        tool_call("search_knowledge_base", {"query": "valve opens"}, id="c2"),
        text("The tank [1]."),
    )
    seen = await alice.ask("tank?")
    results = [message["content"] for message in at.llm.chats[-1].messages if message["role"] == "tool"]
    assert results[0].startswith("[1] tank.txt")
    assert results[1].startswith("TOOL_CALL_LIMIT_REACHED")
    assert [item["filename"] for item in seen.one("citations")["citations"]] == ["tank.txt"]
