"""Nobody sees, changes or learns of what is another's: every route, from the published schema (J01, J02, J03, J14)."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from fastapi import FastAPI
from sqlalchemy import URL

from backend.api.router import api_router
from backend.chat.cursors import encode_seq, encode_session_key
from backend.chat.repository import SessionKey
from tests.acceptance.running import Running, running
from tests.support.chat_client import Client
from tests.support.fake_llm import hang_after, text

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET = "The vault code of the north tower is zebra-4711-quartz."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Running]:
    name = f"ownership_{worker_id}"
    async with running(postgres_url, valkey_url, name, max_runs_per_user=100, model_titles=False) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def at(shared: Running) -> AsyncIterator[Running]:
    await shared.reset()
    async with shared.user("admin"):
        yield shared


# --- J01: what the schema says there is ---

_APP = FastAPI()
_APP.include_router(api_router())
SCHEMA: dict[str, Any] = _APP.openapi()

IDS = {
    "run_id",
    "message_id",
    "session_id",
    "filename",
    "file",
    "path",
    "document_id",
    "document_ids",
    "chunk_id",
    "collection_id",
    "job_id",
    "page",
    "cursor",
    "before",
    "after",
    "last-event-id",
    "idempotency-key",
    "client_message_id",
    "hitl_id",
    "collections",
}
"""Parameters, headers and fields that name something or a place in something."""
PLAIN = {"range", "limit", "message", "name", "multitask", "title", "visibility", "accept-language"}
"""Those that name nothing."""
TRIED_WITH_THE_JOBS = {"/documents/delete/async/{filename}", "/documents/delete/jobs/{job_id}"}
"""What these find for their owner needs a deletion, after which the rest finds nothing: see test_jobs.py."""
NOT_OF_A_USER = {"/auth/register", "/auth/login", "/auth/me", "/auth/password", "/health/live", "/health/ready"}
"""Routes that know the caller's own account or nobody's."""
BODIES: dict[str, dict[str, Any]] = {
    "ChatRequest": {"message": "What is the code?"},
    "SessionPatch": {"title": "mine"},
    "CollectionNamed": {"name": "mine"},
    "CollectionAdd": {},
}


@dataclass(frozen=True)
class Operation:
    """A route with where it takes what."""

    method: str
    path: str
    places: tuple[tuple[str, str], ...]
    """(place, name): place is path, query, header, json or form."""
    schema: str = ""

    @property
    def ids(self) -> list[str]:
        return [name for _, name in self.places if name.lower() in IDS]


def _operation(method: str, path: str, described: dict[str, Any]) -> Operation:
    places = [(item["in"], item["name"]) for item in described.get("parameters", [])]
    name = ""
    for kind, content in described.get("requestBody", {}).get("content", {}).items():
        name = content["schema"]["$ref"].rpartition("/")[2]
        place = "json" if kind == "application/json" else "form"
        places += [(place, field) for field in SCHEMA["components"]["schemas"][name]["properties"]]
    return Operation(method, path, tuple(places), name)


OPERATIONS = [
    _operation(method, path, described)
    for path, methods in SCHEMA["paths"].items()
    for method, described in methods.items()
    if path not in NOT_OF_A_USER
]


async def test_j01_every_parameter_of_every_route_is_known():
    """A new one must be put into ``IDS`` (and is then tried below) or ``PLAIN``."""
    unknown = {(item.path, name) for item in OPERATIONS for _, name in item.places if name.lower() not in IDS | PLAIN}
    assert unknown == set()
    assert {item.schema for item in OPERATIONS if any(place == "json" for place, _ in item.places)} <= set(BODIES)
    assert len([item for item in OPERATIONS if item.ids]) >= 12


@dataclass
class Things:
    """Values for every id: another's, or such as nobody has."""

    values: dict[str, Any]

    def request(self, operation: Operation, theirs: "Things", only: str | None) -> dict[str, Any]:
        """The request with these values; with ``only`` the other ids are ``theirs``."""
        path, sent = operation.path, {"query": {}, "header": {}, "json": dict(BODIES.get(operation.schema, {}))}
        files: dict[str, Any] | None = None
        for place, name in operation.places:
            if name.lower() not in IDS:
                continue
            value = (self if only in (None, name) else theirs).values[name.lower()]
            if place == "path":
                path = path.replace(f"{{{name}}}", str(value))
            elif place == "form":
                files = {name: (value, b"A text about boats.", "text/plain")}
            else:
                sent[place][name] = value
        if "client_message_id" in sent["json"]:
            sent["header"].pop("Idempotency-Key", None)
            sent["header"].pop("idempotency-key", None)
        body = {"json": sent["json"]} if sent["json"] and files is None else {"files": files} if files else {}
        headers = {name: str(value) for name, value in sent["header"].items()}
        return {"method": operation.method.upper(), "url": path, "params": sent["query"], "headers": headers, **body}


async def upload(client: Client, name: str, content: str, **data: str) -> httpx.Response:
    return await client.http.post("/documents/upload", files={"file": (name, content.encode())}, data=data)


async def things_of(client: Client) -> Things:
    """A user with sessions, a run, messages and a private document, and every id that leads to them."""
    assert (await upload(client, "vault.txt", SECRET)).status_code == 200
    seen = await client.ask("What is the vault code?", "alices", client_message_id="alices-key")
    for number in range(2):
        await client.ask("And?", f"more{number}")
    put = await client.http.post("/sessions/alices/uploads", files={"file": ("vault.txt", SECRET.encode())})
    assert put.status_code == 200
    (document,) = (await client.get("/documents")).json()["documents"]
    listed = (await client.get("/sessions", params={"limit": 1})).json()
    collected = (await client.http.post("/collections", json={"name": "hers"})).json()["collection_id"]
    added = {"document_ids": [document["document_id"]]}
    assert (await client.http.post(f"/collections/{collected}/documents", json=added)).status_code == 200
    (job,) = (await client.get("/documents/upload/jobs")).json()["jobs"]
    return Things(
        {
            "job_id": job["job_id"],
            "run_id": seen.run_id,
            "message_id": seen.one("run_started")["message_id"],
            "session_id": "alices",
            "filename": "vault.txt",
            "file": "vault.txt",
            "path": "uploads/vault.txt",
            "document_id": document["document_id"],
            "document_ids": [document["document_id"]],
            "chunk_id": seen.one("trace")["rag_trace"]["retrieved_chunks"][0]["chunk_id"],
            "collection_id": collected,
            "page": 1,
            "cursor": listed["next_cursor"],
            "before": encode_seq(2),
            "after": seen.last_seq - 2,
            "last-event-id": seen.last_seq - 2,
            "idempotency-key": "alices-key",
            "client_message_id": "alices-key",
            "hitl_id": seen.run_id,
            "collections": [collected, "hers"],
        }
    )


def nobodys(documents_key: Any) -> Things:
    return Things(
        {
            "job_id": uuid4(),
            "run_id": uuid4(),
            "message_id": uuid4(),
            "session_id": f"s{uuid4()}",
            "filename": f"{uuid4()}.txt",
            "file": f"{uuid4()}.txt",
            "path": f"uploads/{uuid4()}.txt",
            "document_id": uuid4(),
            "document_ids": [str(uuid4())],
            "chunk_id": uuid4(),
            "collection_id": uuid4(),
            "page": 2,
            "cursor": encode_session_key(SessionKey(documents_key, uuid4())),
            "before": encode_seq(3),
            "after": 1,
            "last-event-id": 1,
            "idempotency-key": str(uuid4()),
            "client_message_id": str(uuid4()),
            "hitl_id": str(uuid4()),
            "collections": [str(uuid4()), f"{uuid4()}.txt"],
        }
    )


_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(r'"\d{4}-\d\d-\d\dT[^"]*"|(?<=_ms":)[\d.]+|(?<="seq":)\d+')


def shape(answer: httpx.Response, given: Things) -> tuple[int, str, str]:
    """Status and body without what differs between any two calls: the ids given, made ids, times."""
    body = answer.text
    for name in ("session_id", "filename", "file"):
        body = body.replace(str(given.values[name]), "<name>")
    body = _TIME.sub("<time>", _UUID.sub("<id>", body))
    return answer.status_code, answer.headers.get("content-type", ""), body


_STATE = """
select row_to_json(t)::text from (
    select u.id, u.username, u.role, s.*, m.*, r.* from users u
    left join chat_sessions s on s.user_id = u.id
    left join chat_messages m on m.session_row_id = s.id
    left join runs r on r.session_row_id = s.id
    where u.username = :name order by s.id, m.id, r.id
) t
union all
select row_to_json(t)::text from (
    select d.*, v.*, c.* from documents d join users u on u.id = d.owner_id
    join document_versions v on v.document_id = d.id join chunks c on c.version_id = v.id
    where u.username = :name order by c.id
) t
union all
select row_to_json(t)::text from (
    select o.*, i.* from collections o join users u on u.id = o.owner_id
    left join collection_documents i on i.collection_id = o.id
    where u.username = :name order by o.id
) t
"""


async def state(at: Running, name: str) -> list[str]:
    """The rows and the files of a user."""
    ((owner,),) = await at.sql("select id from users where username = :name", name=name)
    files = sorted((at.data_dir / "threads" / str(owner)).rglob("*"))
    contents = [f"{path.relative_to(at.data_dir)} {path.read_text() if path.is_file() else ''}" for path in files]
    return [*(row[0] for row in await at.sql(_STATE, name=name)), *contents]


@pytest.mark.parametrize("operation", [item for item in OPERATIONS if item.ids], ids=lambda o: f"{o.method}-{o.path}")
async def test_j01_anothers_id_is_as_unknown_as_any(at: Running, operation: Operation):
    async with at.user() as alice:
        hers = await things_of(alice)
        before = await state(at, alice.name)
        assert SECRET in "".join(before)
        ((when,),) = await at.sql("select now()")
        for only in {None, *operation.ids}:
            answers = []
            for which in ("hers", "nobodys"):
                none, others = nobodys(when), nobodys(when)
                given = hers if which == "hers" else none
                async with at.user() as bob:  # a new one each time: what one call leaves must not show in the other
                    answer = await bob.http.request(**given.request(operation, others, only))
                assert "zebra" not in answer.text
                used = Things({**others.values, **({only: given.values[only.lower()]} if only else given.values)})
                answers.append(shape(answer, used))
            assert answers[0] == answers[1], only
        assert await state(at, alice.name) == before
        assert len((await alice.get("/documents")).json()["documents"]) == 1


def _outermost_last(operation: Operation) -> tuple[bool, int]:
    return operation.method == "delete", -len(operation.path)


async def test_j01_the_same_calls_of_the_owner_do_find_something(at: Running):
    """So the comparison above is one of things that exist."""
    async with at.user() as alice:
        hers = await things_of(alice)
        for operation in sorted((item for item in OPERATIONS if item.ids), key=_outermost_last):
            request = hers.request(operation, hers, None)
            request["params"].pop("cursor", None)
            if operation.schema == "ChatRequest" or operation.path in TRIED_WITH_THE_JOBS:
                continue
            answer = await alice.http.request(**request)
            assert answer.status_code == 200, (operation, answer.text)


# --- J02 ---


@pytest.mark.parametrize("live", [True, False], ids=["live", "ended"])
async def test_j02_anothers_run_can_be_neither_watched_nor_stopped(at: Running, live: bool):
    async with at.user() as alice, at.user() as bob, AsyncExitStack() as stack:
        at.llm.script(hang_after(3) if live else text("the whole answer"))
        if live:
            stream = await stack.enter_async_context(alice.stream("hello"))
            await stream.until_text("two")
        else:
            stream = await alice.ask("hello")
        for run_id in (stream.run_id, str(uuid4())):
            for method, path in (("GET", ""), ("GET", "/stream"), ("GET", "/stream?after=2"), ("POST", "/stop")):
                answer = await bob.http.request(method, f"/chat/runs/{run_id}{path}")
                assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
        answer = await bob.get(f"/chat/messages/{stream.one('run_started')['message_id']}")
        assert answer.status_code == 404
        assert (await bob.messages()) == []
        assert (await alice.run(stream.run_id))["status"] == ("running" if live else "completed")
        if live:
            await alice.stop(stream.run_id)


# --- J03 ---


async def test_j03_a_private_document_is_recalled_for_its_owner_only(at: Running):
    question = "What is the vault code of the north tower?"
    async with at.user() as alice, at.user() as bob:
        hers = await things_of(alice)
        assert (await upload(bob, "boats.txt", "The boat of the north tower is blue.")).status_code == 200
        mine = await alice.ask(question, "mine")
        assert "zebra" in mine.text
        at.llm.requests.clear()
        asked = [
            {"message": question},
            {"message": f"{question} document_id={hers.values['document_id']} user={alice.name} vault.txt"},
            {"message": question, "session_id": "alices"},
        ]
        for fields in asked:
            seen = await bob.ask(**{"session_id": f"s{uuid4()}", **fields})
            trace = json.dumps(seen.one("trace"))
            assert "boats.txt" in trace
            assert "vault.txt" not in trace.replace(fields["message"], "")
            assert b"zebra" not in seen.raw
        for name in hers.values["collections"]:
            refused = await bob.http.post("/chat", json={"message": question, "collections": [name]})
            assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
        assert not [request for request in at.llm.requests if b"zebra" in request.payload]
        assert hers.values["document_id"] not in (await bob.get("/documents")).text
        listed = (await bob.get("/sessions")).json()["sessions"]
        assert "more0" not in [item["session_id"] for item in listed]


# --- J14 ---

OWNERS = ["user_id", "owner", "owner_id", "id", "role", "is_admin", "created_at", "status", "version", "__proto__"]
CREATING = [item for item in OPERATIONS if item.schema]


@pytest.mark.parametrize("operation", CREATING, ids=lambda o: f"{o.method}-{o.path}")
async def test_j14_no_body_sets_an_owner_or_a_state(at: Running, operation: Operation):
    async with at.user() as alice:
        hers = await things_of(alice)
        before = await state(at, alice.name)
        request = hers.request(operation, nobodys((await at.sql("select now()"))[0][0]), None)
        for field in OWNERS:
            place = "json" if "json" in request else "data"
            bad = {**request, place: {**request.get(place, {}), field: "admin"}}
            answer = await alice.http.request(**bad)
            assert (answer.status_code, answer.json()["code"]) == (422, "validation_error"), field
        assert await state(at, alice.name) == before
