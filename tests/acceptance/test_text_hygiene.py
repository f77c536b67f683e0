"""Text that breaks databases, JSON or templates, in every place where text comes in (D01, J16)."""

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.running import Running, running
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import raw, text, tool_call
from tests.support.fake_llm_replies import delta, event

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    async with running(postgres_url, valkey_url, f"hygiene_{worker_id}") as made:
        yield made


JSON = {"Content-Type": "application/json"}


async def upload(client: Client, name: str, content: bytes) -> dict[str, Any]:
    answer = await client.http.post("/documents/upload", files={"file": (name, content)})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def equal_everywhere(at: Running, client: Client, seen: Stream) -> tuple[dict[str, Any], dict[str, Any]]:
    """Question and answer as stored, after the stream, its replay and the rows were found equal."""
    question, answer = await client.messages()
    replayed = await client.replay(seen.run_id)
    assert replayed.events == seen.events
    assert answer["content"] == seen.text
    assert answer["rag_trace"] == seen.one("trace")["rag_trace"]
    assert answer["citations"] == seen.one("citations")["citations"]
    assert seen.one("done")["status"] == "completed"
    await at.check(turns=1)
    return question, answer


# --- D01 ---

DIRTY = [
    ("nul \x00 inside", "nul  inside"),
    ("lone \ud800 high", "lone \ufffd high"),
    ("lone \udfff low", "lone \ufffd low"),
    ("pair \ud83d\ude00 whole", "pair \U0001f600 whole"),
    ("line\u2028par\u2029 nel\x85 end", "line\u2028par\u2029 nel\x85 end"),
    ("bom \ufeff non \uffff control \x07", "bom \ufeff non \uffff control \x07"),
    ("cafe\u0301", "caf\u00e9"),
]
each = pytest.mark.parametrize(("dirty", "clean"), DIRTY, ids=lambda value: ascii(value)[1:-1])


@each
async def test_d01_in_a_message_a_title_and_a_key(at: Running, alice: Client, dirty: str, clean: str):
    body = json.dumps({"message": dirty, "session_id": "s", "client_message_id": f"k {dirty}"})
    async with alice.http.stream("POST", "/chat/stream", content=body, headers=JSON) as response:
        assert response.status_code == 200
        seen = await Stream(response).end()
    question, _ = await equal_everywhere(at, alice, seen)
    assert question["content"] == clean
    assert clean in [message["content"] for message in at.llm.chats[0].messages]
    for _ in range(2):
        title = (await alice.get("/sessions")).json()["sessions"][0]["title"]
        assert title == seen.one("session_title")["title"]
        assert "\x00" not in title
    renamed = await alice.http.patch("/sessions/s", content=json.dumps({"title": dirty}), headers=JSON)
    assert renamed.status_code == 200
    assert (await alice.get("/sessions")).json()["sessions"][0]["title"] == renamed.json()["title"]
    again = await alice.http.post("/chat", content=body, headers=JSON)
    assert again.json()["run_id"] == seen.run_id


@each
async def test_d01_in_tokens_of_the_model(at: Running, alice: Client, dirty: str, clean: str):
    bodies = [json.dumps(delta({"content": piece})).encode() for piece in ("It says: ", dirty, " – and more.")]
    pieces = [b"data: " + body + b"\n\n" for body in bodies]
    at.llm.script(raw(*pieces, event(delta({}, finish="stop")), b"data: [DONE]\n\n"))
    seen = await alice.ask()
    _, answer = await equal_everywhere(at, alice, seen)
    assert answer["content"] == f"It says: {clean} – and more."
    awaited = (await alice.post("/chat", {"message": "x", "session_id": "b"})).json()
    assert awaited["status"] == "completed"


@each
async def test_d01_in_what_the_model_asks_of_a_tool(at: Running, alice: Client, dirty: str, clean: str):
    await upload(alice, "pump.txt", b"The pump holds 24 bar.")
    arguments = json.dumps({"query": f"pump {dirty}"})
    at.llm.script(tool_call("search_knowledge_base", arguments), text("It holds 24 bar [1]."))
    seen = await alice.ask()
    _, answer = await equal_everywhere(at, alice, seen)
    assert answer["rag_trace"]["query"] == f"pump {clean}"
    assert [item["filename"] for item in answer["citations"]] == ["pump.txt"]


@each
async def test_d01_in_a_document_and_its_chunks(at: Running, alice: Client, dirty: str, clean: str):
    # The rest of the text is there because a file that is dirt for the most part is refused as unreadable.
    content = f"The pump of {dirty} holds 24 bar. {'More of it. ' * 100}".encode("utf-8", "surrogatepass")
    await upload(alice, "pump.txt", content)
    seen = await alice.ask("How much does the pump hold?")
    _, answer = await equal_everywhere(at, alice, seen)
    chunk = next(chunk for chunk in answer["rag_trace"]["retrieved_chunks"] if "24 bar" in chunk["text"])
    assert "\x00" not in chunk["text"]
    assert answer["citations"][0]["quote"] in chunk["text"]


async def test_d01_in_every_chunk_whatever_a_parser_gives(at: Running, alice: Client):
    """All dirt at once in a longer text, in headings too."""
    dirt = "".join(dirty for dirty, _ in DIRTY).encode("utf-8", "surrogatepass")
    lines = [b"Pump %d holds %d bar, as is written here and elsewhere in this text." % (n, n) for n in range(60)]
    content = b"# Head " + dirt + b"\n\n" + b"\n\n".join([*lines, dirt])
    await upload(alice, "pump.md", content)
    seen = await alice.ask("How much does pump 17 hold?")
    await equal_everywhere(at, alice, seen)
    assert seen.one("citations")["citations"]


@each
async def test_d01_in_a_filename(at: Running, alice: Client, dirty: str, clean: str):
    name = f"{dirty}.txt".encode("utf-8", "surrogatepass")
    boundary = b"xyz"
    body = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="' + name + b'"\r\n\r\n'
    body += b"The pump holds 24 bar.\r\n--xyz--\r\n"
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary.decode()}"}
    answer = await alice.http.post("/documents/upload", content=body, headers=headers)
    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 422:  # a broken header is refused, and nothing is kept of it
        assert answer.json()["code"] == "validation_error"
        assert (await alice.get("/documents")).json()["documents"] == []
        return
    stored = answer.json()["filename"]
    assert not {"\x00", "\u2028", "\u2029", "\x07"} & set(stored)
    seen = await alice.ask("How much does the pump hold?")
    await equal_everywhere(at, alice, seen)
    assert seen.one("citations")["citations"][0]["filename"] == stored
    ids = (await alice.get("/documents")).json()["documents"][0]
    assert ids["filename"] == stored
    gone = await alice.http.delete(f"/documents/{quote(stored)}")
    assert gone.status_code == 200, gone.text


async def test_d01_in_ids_of_a_path(at: Running, alice: Client):
    for path in ("/sessions/a%00b", "/sessions/%ED%A0%80", "/chat/runs/a%00", "/chat/messages/%00"):
        assert (await alice.get(path)).status_code in (404, 422)
    for name in ("a%00.txt", "%ED%A0%80.txt", "%00"):
        assert (await alice.http.delete(f"/documents/{name}")).status_code in (404, 422)
    for cursor in ("%00", "AAAA", "\u2028", "c2VxIA", "bm8"):
        assert (await alice.get(f"/sessions?cursor={cursor}")).status_code == 422


# --- J16 ---

TEMPLATES = ["{{7*7}}", "{0.__class__}", "%s %(x)d %n", "${JWT_SECRET_KEY} $(id) `id`", "#{7*7} <%= 7*7 %>", "{", "}}"]


@pytest.mark.parametrize("template", TEMPLATES)
async def test_j16_a_template_is_text_wherever_it_stands(at: Running, alice: Client, template: str):
    name = f"{template}.txt".replace("/", "")
    stored = await upload(alice, name, f"The pump {template} holds 24 bar.".encode())
    assert stored["filename"] == name
    at.llm.script(
        tool_call("search_knowledge_base", {"query": f"pump {template}"}), text(f"{template}: it holds 24 bar [1].")
    )
    seen = await alice.ask(f"pump {template}")
    question, answer = await equal_everywhere(at, alice, seen)
    assert question["content"] == seen.one("session_title")["title"] == f"pump {template}"
    assert answer["content"] == f"{template}: it holds 24 bar [1]."
    assert answer["rag_trace"]["query"] == f"pump {template}"
    (citation,) = answer["citations"]
    assert (citation["filename"], citation["quote"]) == (name, f"The pump {template} holds 24 bar.")
    (result,) = [message["content"] for message in at.llm.chats[-1].messages if message["role"] == "tool"]
    assert result == f"[1] {name}: The pump {template} holds 24 bar."
    assert at.llm.chats[-1].messages[1]["content"] == f"pump {template}"
    renamed = await alice.http.patch("/sessions/s", json={"title": template})
    assert renamed.json()["title"] == template
    assert "49" not in json.dumps([question["content"], answer["content"], renamed.json()["title"]])


async def test_j16_a_template_is_text_in_an_extractive_answer_too(at: Running, alice: Client):
    """The rules quote sentences; they format nothing either."""
    for template in TEMPLATES:
        await upload(alice, "pump.txt", f"The pump {template} holds 24 bar.".encode())
        seen = await alice.ask("How much does the pump hold?", f"s{len(template)}")
        assert f"The pump {template} holds 24 bar." in seen.text
