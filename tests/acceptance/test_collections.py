"""Collections: sets of documents to ask about; and documents that are read (I01, J03, J09)."""

from collections.abc import AsyncIterator
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.running import Running, running
from tests.support.chat_client import Client

pytestmark = pytest.mark.asyncio(loop_scope="module")
QUESTION = "What colour is the boat of the north tower?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    async with running(postgres_url, valkey_url, f"collections_{worker_id}", llm_base_url=None) as made:
        yield made


async def upload(client: Client, name: str, content: str, **data: str) -> str:
    """The id of the stored document."""
    sent = await client.http.post("/documents/upload", files={"file": (name, content.encode())}, data=data)
    assert sent.status_code == 200, sent.text
    listed = (await client.get("/documents")).json()["documents"]
    return next(one["document_id"] for one in listed if one["filename"] == name)


async def made(client: Client, name: str, *documents: str) -> str:
    """The id of a new collection of these documents."""
    answer = await client.http.post("/collections", json={"name": name})
    assert answer.status_code == 200, answer.text
    collection = answer.json()["collection_id"]
    if documents:
        added = await client.http.post(f"/collections/{collection}/documents", json={"document_ids": [*documents]})
        assert added.json()["document_count"] == len(documents)
    return collection


async def ask(client: Client, **fields: object) -> httpx.Response:
    body = {"message": QUESTION, "session_id": f"s{uuid4()}", **fields}
    return await client.http.post("/chat", json=body)


async def files(client: Client, **fields: object) -> set[str]:
    """The files whose passages were recalled."""
    trace = (await ask(client, **fields)).json()["rag_trace"]
    return {chunk["filename"] for chunk in trace["initial_retrieved_chunks"]}


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_a_question_to_a_collection_is_answered_from_it_alone(alice: Client):
    red = await upload(alice, "red.txt", "The boat of the north tower is red.")
    await upload(alice, "blue.txt", "The boat of the north tower is blue.")
    first, empty = await made(alice, "first", red), await made(alice, "empty")
    assert await files(alice) == {"red.txt", "blue.txt"}
    for chosen in (["first"], [first], ["first", "empty"], [first, "first"]):
        assert await files(alice, collections=chosen) == {"red.txt"}
    assert await files(alice, collections=[]) == {"red.txt", "blue.txt"}
    nothing = (await ask(alice, collections=[empty])).json()
    assert (nothing["status"], nothing["rag_trace"]["recall_count"], nothing["citations"]) == ("completed", 0, [])
    removed = await alice.http.delete(f"/collections/{first}/documents/{red}")
    assert removed.json()["document_count"] == 0
    assert (await ask(alice, collections=["first"])).json()["rag_trace"]["recall_count"] == 0


async def test_a_collection_follows_its_documents(alice: Client):
    red = await upload(alice, "red.txt", "The boat of the north tower is red.")
    collection = await made(alice, "boats", red)
    await upload(alice, "red.txt", "The boat of the north tower was red and is green now.")
    assert "green" in (await ask(alice, collections=["boats"])).json()["response"]
    assert (await alice.http.delete("/documents/red.txt")).status_code == 200
    (listed,) = (await alice.get("/collections")).json()["collections"]
    assert listed["document_count"] == 0
    assert (await alice.get(f"/collections/{collection}/documents")).json()["documents"] == []


async def test_names_and_their_ends(alice: Client):
    first, second = await made(alice, " first "), await made(alice, "second")
    assert [one["name"] for one in (await alice.get("/collections")).json()["collections"]] == ["first", "second"]
    assert refusal(await alice.http.post("/collections", json={"name": "first"})) == (409, "name_taken")
    assert refusal(await alice.http.patch(f"/collections/{second}", json={"name": "first"})) == (409, "name_taken")
    assert (await alice.http.patch(f"/collections/{second}", json={"name": "third"})).json()["name"] == "third"
    for name in ("", "  \u200b ", "x" * 201):
        assert refusal(await alice.http.post("/collections", json={"name": name})) == (422, "validation_error")
    assert (await alice.http.delete(f"/collections/{first}")).status_code == 200
    assert refusal(await alice.http.delete(f"/collections/{first}")) == (404, "not_found")
    assert refusal(await ask(alice, collections=["first"])) == (404, "not_found")


async def test_j03_a_collection_of_anothers_holds_and_tells_nothing(at: Running, alice: Client):
    async with at.user() as bob, at.user() as eve:
        vault = await upload(bob, "vault.txt", "The boat of the north tower is zebra coloured.")
        hers = await made(bob, "hers", vault)
        mine = await made(eve, "mine")
        unknown = str(uuid4())
        for collection in (hers, unknown):
            assert refusal(await eve.get(f"/collections/{collection}/documents")) == (404, "not_found")
            assert refusal(await ask(eve, collections=[collection])) == (404, "not_found")
            added = await eve.http.post(f"/collections/{collection}/documents", json={"document_ids": [vault]})
            assert refusal(added) == (404, "not_found")
        for document in (vault, unknown):
            added = await eve.http.post(f"/collections/{mine}/documents", json={"document_ids": [document]})
            assert refusal(added) == (404, "not_found")
        # As if it had got in: what is not hers to see is neither counted nor found.
        await at.sql("insert into collection_documents values (:c, :d)", c=mine, d=vault)
        (listed,) = (await eve.get("/collections")).json()["collections"]
        assert listed["document_count"] == 0
        assert "zebra" not in (await ask(eve, collections=["mine"])).text


async def test_i01_a_collection_whose_documents_are_gone_finds_nothing(alice: Client):
    red = await upload(alice, "red.txt", "The boat of the north tower is red.")
    await made(alice, "boats", red)
    await alice.http.delete("/documents/red.txt")
    answer = (await ask(alice, collections=["boats"])).json()
    assert (answer["status"], answer["citations"], answer["rag_trace"]["recall_count"]) == ("completed", [], 0)


# --- reading -----------------------------------------------------------------------------------------------------


async def test_a_citation_is_read_with_what_stands_around_it(alice: Client):
    text = "\n\n".join(f"# Part {n}\n\nThe boat number {n} has the colour c{n}." for n in range(30))
    document = await upload(alice, "boats.md", text)
    answer = (await ask(alice, message="Which colour has the boat number 17?")).json()
    citation = answer["citations"][0]
    read = await alice.get(f"/documents/{document}/chunks/{citation['chunk_id']}")
    passage = read.json()
    assert citation["quote"] in passage["text"]
    assert (passage["filename"], passage["document_version"]) == ("boats.md", 1)
    page = (await alice.get(f"/documents/{document}/pages/1")).json()
    assert "colour c0." in page["text"]
    assert "colour c29." in page["text"]
    assert (page["pages"], page["truncated"]) == (None, False)
    assert refusal(await alice.get(f"/documents/{document}/pages/2")) == (404, "not_found")
    assert refusal(await alice.get(f"/documents/{document}/pages/0")) == (422, "validation_error")
    assert refusal(await alice.get(f"/documents/{uuid4()}/chunks/{citation['chunk_id']}")) == (404, "not_found")
    await upload(alice, "boats.md", "The boats are gone.")
    gone = await alice.get(f"/documents/{document}/chunks/{citation['chunk_id']}")
    assert refusal(gone) == (404, "not_found")


async def test_j09_an_original_is_saved_and_never_run(alice: Client):
    html = "<html><body><script>alert(1)</script><p>The boat of the north tower is red.</p></body></html>"
    name = "a'b<img src=x onerror=alert(1)>.html"
    document = await upload(alice, name, html)
    answer = await alice.get(f"/documents/{document}/original")
    assert answer.content == html.encode()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    disposition = answer.headers["content-disposition"]
    assert disposition.startswith("attachment; filename*=utf-8''")
    assert not set('<>" ') & set(disposition.removeprefix("attachment; "))
    part = await alice.http.get(f"/documents/{document}/original", headers={"Range": "bytes=6-11"})
    assert (part.status_code, part.text) == (206, html[6:12])
    for token in ("", f"?token={alice.http.headers['authorization'].split()[1]}"):
        bare = await alice.http.get(f"/documents/{document}/original{token}", headers={"Authorization": ""})
        assert bare.status_code == 401, "no token in the address opens anything (J07)"
