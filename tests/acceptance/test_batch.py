"""Several files in one request, zip files among them: every one is a job or has a code, and none costs another."""

import io
import struct
import zipfile
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
LIMITS = {"MAX_BATCH_FILES": "6", "MAX_BATCH_INFLATED_BYTES": "6000000", "MAX_UPLOAD_BYTES": "4000000"}
GATE, PUMP = b"The gate opens at seven.", b"The pump delivers forty litres."


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_url: URL, valkey_url: str, worker_id: str) -> AsyncIterator[Rack]:
    async with rack(postgres_url, valkey_url, f"batch_{worker_id}", LIMITS) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def alice(shared: Rack) -> AsyncIterator[Client]:
    """Not the first account, which is an admin."""
    await shared.reset()
    async with shared.user(), shared.user() as client:
        yield client


def zipped(entries: Mapping[str, bytes] | list[tuple[str, bytes]]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items() if isinstance(entries, Mapping) else entries:
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def lying(archive: bytes, declared: int) -> bytes:
    """The same with another size of its first entry, in both of its headers."""
    changed = bytearray(archive)
    struct.pack_into("<L", changed, archive.index(b"PK\x03\x04") + 22, declared)
    struct.pack_into("<L", changed, archive.index(b"PK\x01\x02") + 24, declared)
    return bytes(changed)


def encrypted(archive: bytes) -> bytes:
    """The same with the mark of encryption at its first entry."""
    changed = bytearray(archive)
    changed[archive.index(b"PK\x03\x04") + 6] |= 1
    changed[archive.index(b"PK\x01\x02") + 8] |= 1
    return bytes(changed)


async def batch(client: Client, *files: tuple[str, bytes], **data: str) -> dict[str, Any]:
    sent = [("file", file) for file in files]
    answer = await client.http.post("/documents/batch", files=sent, data=data)
    assert answer.status_code == 200, answer.text
    return answer.json()


def told(answer: dict[str, Any]) -> list[tuple[str, str | None]]:
    assert {(one["job_id"] is None, one["error"] is None) for one in answer["files"]} <= {(True, False), (False, True)}
    assert answer["accepted"] == sum(1 for one in answer["files"] if one["job_id"])
    assert answer["refused"] == len(answer["files"]) - answer["accepted"]
    return [(one["filename"], one["code"]) for one in answer["files"]]


async def ready(client: Client, count: int) -> list[str]:
    """The names in the library once that many documents answer."""

    async def all_ready() -> bool:
        found = (await client.get("/documents")).json()["documents"]
        return [one["status"] for one in found] == ["ready"] * count

    await until(all_ready, 120)
    return sorted(one["filename"] for one in (await client.get("/documents")).json()["documents"])


async def test_a_bad_file_costs_the_others_nothing(alice: Client) -> None:
    files = [("gate.txt", GATE), ("tool.exe", b"MZ"), ("empty.md", b""), ("gate.txt", PUMP), ("pump.md", PUMP)]
    answer = await batch(alice, *files)
    assert told(answer) == [
        ("gate.txt", None),
        ("tool.exe", "type_mismatch"),
        ("empty.md", "empty_document"),
        ("gate.txt", "name_taken"),
        ("pump.md", None),
    ]
    assert await ready(alice, 2) == ["gate.txt", "pump.md"]
    listed = (await alice.get("/documents/upload/jobs")).json()["jobs"]
    assert {one["job_id"] for one in listed} == {one["job_id"] for one in answer["files"] if one["job_id"]}


async def test_entries_of_a_zip_are_documents_with_safe_names(alice: Client) -> None:
    names = ["docs/gate.txt", "../../etc/pump.md", "/abs/door.md", "C:\\temp\\roof.md", "docs/", "__MACOSX/._gate.txt"]
    answer = await batch(alice, ("all.zip", zipped(dict.fromkeys(names, GATE))))
    assert told(answer) == [("gate.txt", None), ("pump.md", None), ("door.md", None), ("roof.md", None)]
    assert {one["archive"] for one in answer["files"]} == {"all.zip"}
    assert await ready(alice, 4) == ["door.md", "gate.txt", "pump.md", "roof.md"]


async def test_each_bad_entry_has_its_own_code(alice: Client) -> None:
    link = zipfile.ZipInfo("link.md")
    link.external_attr = 0o120777 << 16
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/gate.txt", GATE)
        archive.writestr("b/gate.txt", PUMP)
        archive.writestr("inner.zip", zipped({"x.md": GATE}))
        archive.writestr(link, "/etc/passwd")
        archive.writestr("pump.md", PUMP)
    assert told(await batch(alice, ("mixed.ZIP", made.getvalue()))) == [
        ("gate.txt", None),
        ("gate.txt", "name_taken"),
        ("inner.zip", "type_mismatch"),
        ("link.md", "type_mismatch"),
        ("pump.md", None),
    ]
    assert await ready(alice, 2) == ["gate.txt", "pump.md"]


async def test_an_encrypted_entry_is_told_and_the_next_is_taken(alice: Client) -> None:
    content = encrypted(zipped({"secret.md": GATE, "pump.md": PUMP}))
    assert told(await batch(alice, ("safe.zip", content))) == [("secret.md", "encrypted_document"), ("pump.md", None)]


async def test_h09_what_comes_out_of_a_zip_is_counted_whatever_it_declares(alice: Client) -> None:
    bomb = lying(zipped({"bomb.txt": b"a" * 3_000_000, "pump.md": PUMP}), 10)
    assert told(await batch(alice, ("bomb.zip", bomb))) == [("bomb.txt", "too_large"), ("pump.md", None)]


async def test_h09_entries_of_one_request_share_what_may_come_out(alice: Client) -> None:
    # Noise in hexadecimal packs to half, far from the ratio of a bomb.
    rows = b"".join(f"{n * 2654435761 % 2**32:08x}\n".encode() for n in range(350_000))
    first, second = zipped({"one.txt": rows}), zipped({"two.txt": rows, "three.txt": GATE})
    answer = await batch(alice, ("first.zip", first), ("second.zip", second))
    assert told(answer) == [("one.txt", None), ("two.txt", "too_large"), ("three.txt", "too_large")]


async def test_a_zip_that_is_broken_empty_or_too_full_is_one_outcome(alice: Client) -> None:
    full = zipped({f"{n}.md": GATE for n in range(7)})
    files = [("broken.zip", b"PK\x03\x04 and no more"), ("none.zip", zipped({})), ("full.zip", full), ("a.md", GATE)]
    assert told(await batch(alice, *files)) == [
        ("broken.zip", "parse_failed"),
        ("none.zip", "empty_document"),
        ("full.zip", "too_many_files"),
        ("a.md", None),
    ]


async def test_files_beyond_the_limit_are_named_and_the_first_are_taken(alice: Client) -> None:
    answer = await batch(alice, *((f"{n}.md", GATE + bytes([65 + n])) for n in range(8)))
    assert told(answer) == [(f"{n}.md", None if n < 6 else "too_many_files") for n in range(8)]


async def test_names_of_a_chinese_archiver_are_read(alice: Client) -> None:
    raw = "水泵.md".encode("gbk")
    content = zipped({"x" * len(raw): PUMP}).replace(b"x" * len(raw), raw)
    assert told(await batch(alice, ("zh.zip", content))) == [("水泵.md", None)]


async def test_i06_a_batch_belongs_to_who_sent_it(shared: Rack, alice: Client) -> None:
    answer = await batch(alice, ("all.zip", zipped({"gate.txt": GATE})))
    [one] = answer["files"]
    async with shared.user() as bob:
        assert (await bob.get(f"/documents/upload/jobs/{one['job_id']}")).status_code == 404
        assert (await bob.get("/documents")).json()["documents"] == []
    refused = await alice.http.post("/documents/batch", files=[("file", ("a.md", GATE))], data={"visibility": "shared"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


async def test_the_same_batch_again_adds_nothing(shared: Rack, alice: Client) -> None:
    content = zipped({"gate.txt": GATE, "pump.md": PUMP})
    await batch(alice, ("all.zip", content))
    assert await ready(alice, 2) == ["gate.txt", "pump.md"]
    assert told(await batch(alice, ("all.zip", content))) == [("gate.txt", None), ("pump.md", None)]
    assert await shared.sql("select count(*) from document_versions") == [(2,)]
    assert await ready(alice, 2) == ["gate.txt", "pump.md"]


async def test_a_request_above_the_limit_of_an_upload_is_refused_whole(alice: Client) -> None:
    answer = await alice.http.post(
        "/documents/batch", files=[("file", (f"{n}.md", b"x" * 2_100_000)) for n in range(2)]
    )
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
