"""Files that a user puts into a thread: told to model and client, and kept with the message they came with."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat import repository
from backend.chat.service import ChatService
from backend.chat.thread_repository import record_uploads, thread_row
from backend.infra.database.engine import transaction
from backend.schemas.auth import Principal
from backend.schemas.chat import UploadedFile
from tests.agents.threads import TOOLS, threads
from tests.chat.workers import Events, ask, new_user, read, whole_turn, worker
from tests.support.fake_llm import FakeLLM, close_after
from tests.support.fake_llm import text as says


def csv(name: str, size: int = 3) -> UploadedFile:
    return UploadedFile(filename=name, size=size, path=f"/mnt/user-data/uploads/{name}", mime_type="text/csv")


async def upload(engine: AsyncEngine, user: Principal, files: Sequence[UploadedFile], *added: str) -> UUID:
    """What the routes do with the row; the session may be new."""
    async with transaction(engine) as connection:
        await repository.lock_user(connection, user.id)
        row = await thread_row(connection, user.id, "s")
        if row is None:
            row = (await repository.touch_session(connection, user.id, "s")).id
        await record_uploads(connection, row, files, added)
        return row


async def turn(service: ChatService, user: Principal, message: str = "q") -> Events:
    started = await whole_turn(service, user, ask(message))
    return await read(service, user, started.run_id)


async def attachments(service: ChatService, user: Principal) -> list[list[str]]:
    """The names of the files of each of the user's messages."""
    messages = (await service.messages(user, "s")).messages
    assert all(item.attachments == [] for item in messages if item.type == "ai")
    return [[file.filename for file in item.attachments] for item in messages if item.type == "human"]


async def test_files_are_attached_to_the_message_they_came_with_and_listed_in_every_prompt(
    engine: AsyncEngine, tmp_path: Path
):
    user, a, b = await new_user(engine), csv("a.csv"), csv("b.csv")
    async with FakeLLM() as llm, worker(engine, llm, threads=threads(tmp_path), tools=TOOLS) as service:
        llm.default = says("Yes.")
        await upload(engine, user, [a], "a.csv")
        first = await turn(service, user, "What is in it?")
        second = await turn(service, user)
        await upload(engine, user, [a, b], "b.csv")
        third = await turn(service, user)
        assert await attachments(service, user) == [["a.csv"], [], ["b.csv"]]
        frames = [[event["files"] for event in seen.of("uploaded_files")] for seen in (first, second, third)]
        listed = [str(request.messages[-1]["content"]) for request in llm.chats]
        stored = (await service.messages(user, "s")).messages[0]
        titles = [info.title for info in (await service.sessions(user)).sessions]
    assert frames == [[[a.model_dump()]], [], [[a.model_dump(), b.model_dump()]]]
    assert first.types.index("session_title") < first.types.index("uploaded_files") < first.types.index("content")
    assert ["a.csv" in prompt for prompt in listed] == [True, True, True]
    assert ["b.csv" in prompt for prompt in listed] == [False, False, True]
    assert str(llm.chats[-1].body).count("b.csv (") == 1, "earlier turns are as they were said"
    assert stored.content == "What is in it?"
    assert titles == ["What is in it?"]


async def test_the_copy_in_the_cache_has_the_attachments_too(engine: AsyncEngine, tmp_path: Path, redis_url: str):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, redis_url=redis_url, threads=threads(tmp_path)) as service:
        llm.default = says("Yes.")
        await turn(service, user)
        assert await attachments(service, user) == [[]]
        await upload(engine, user, [csv("a.csv")], "a.csv")
        await service.messages(user, "s")
        await turn(service, user)
        assert await attachments(service, user) == [[], ["a.csv"]]


async def test_the_attachments_are_there_whatever_becomes_of_the_turn_and_are_not_given_twice(
    engine: AsyncEngine, tmp_path: Path
):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, threads=threads(tmp_path)) as service:
        await upload(engine, user, [csv("a.csv")], "a.csv")
        llm.script(close_after(1), says("Yes."))
        await turn(service, user)
        await turn(service, user)
        assert await attachments(service, user) == [["a.csv"], []]


async def test_a_file_that_was_replaced_before_the_message_comes_with_it_once_and_a_deleted_one_does_not(
    engine: AsyncEngine, tmp_path: Path
):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, threads=threads(tmp_path)) as service:
        llm.default = says("Yes.")
        await upload(engine, user, [csv("a.csv"), csv("b.csv")], "a.csv", "b.csv")
        await upload(engine, user, [csv("a.csv", 7), csv("b.csv")], "a.csv")
        await upload(engine, user, [csv("a.csv", 7)])
        seen = await turn(service, user)
        assert seen.of("uploaded_files")[0]["files"] == [csv("a.csv", 7).model_dump()]
        assert await attachments(service, user) == [["a.csv"]]
        await upload(engine, user, [])
        gone = await turn(service, user)
        assert gone.of("uploaded_files")[0]["files"] == []
        assert "a.csv" not in str(llm.chats[-1].messages[-1])


async def test_the_directory_decides_and_an_upload_during_a_turn_is_not_lost(engine: AsyncEngine, tmp_path: Path):
    user = await new_user(engine)

    async def listed(_: str) -> Sequence[Mapping[str, Any]]:
        await upload(engine, user, [csv("a.csv"), csv("late.csv")], "late.csv")
        return [csv("a.csv", 9).model_dump()]

    async with FakeLLM() as llm, worker(engine, llm, threads=threads(tmp_path, list_files=listed)) as service:
        llm.default = says("Yes.")
        await upload(engine, user, [csv("a.csv")], "a.csv")
        seen = await turn(service, user)
        assert [event["files"][0]["size"] for event in seen.of("uploaded_files")] == [3, 9]
        async with engine.connect() as connection:
            state = (await connection.execute(text("select thread_state from chat_sessions"))).scalar_one()
        assert [item["filename"] for item in state["uploaded_files"]] == ["a.csv", "late.csv"]
        assert [item["filename"] for item in state["new_uploads"]] == ["late.csv"]
        assert "late.csv" in str((await turn(service, user)).of("uploaded_files")[0])
        assert await attachments(service, user) == [["a.csv"], ["late.csv"]]


async def test_j16_a_file_name_is_literal_text_in_prompt_frame_and_message(engine: AsyncEngine, tmp_path: Path):
    user, name = await new_user(engine), "{{7*7}} {0.__class__} %s ${x} --pre=sh.csv"
    async with FakeLLM() as llm, worker(engine, llm, threads=threads(tmp_path)) as service:
        llm.default = says("Yes.")
        await upload(engine, user, [csv(name)], name)
        seen = await turn(service, user, "{{7*7}} %s {question}")
        assert f"/mnt/user-data/uploads/{name} (text/csv" in llm.chats[0].messages[-1]["content"]
        assert llm.chats[0].messages[-1]["content"].startswith("{{7*7}} %s {question}")
        assert seen.of("uploaded_files")[0]["files"][0]["filename"] == name
        assert await attachments(service, user) == [[name]]
