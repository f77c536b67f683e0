"""What a turn's thread keeps: told while it happens, stored with the turn's end, there again in the next one."""

from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat.service import ChatService
from backend.schemas.auth import Principal
from tests.agents.threads import PIXEL, TOOLS, RememberedSandboxes, threads
from tests.chat.workers import Events, ask, new_user, read, whole_turn, worker
from tests.support.fake_llm import FakeLLM, Reply, Request, close_after, status, tool_call, tool_calls
from tests.support.fake_llm import text as says
from tests.support.waiting import until

REPORT = "/mnt/user-data/outputs/report.md"
TODOS = [{"content": "sum", "status": "in_progress"}]


async def turn(service: ChatService, user: Principal, message: str = "q") -> Events:
    started = await whole_turn(service, user, ask(message))
    return await read(service, user, started.run_id)


async def stored(engine: AsyncEngine) -> dict[str, Any]:
    async with engine.connect() as connection:
        return (await connection.execute(text("select thread_state from chat_sessions"))).scalar_one()


async def test_an_artifact_is_told_stored_and_there_after_a_restart(engine: AsyncEngine, tmp_path: Path):
    user = await new_user(engine)
    async with FakeLLM() as llm:
        async with worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
            llm.script(tool_call("present_files", {"paths": [REPORT]}), says("Here it is."))
            seen = await turn(service, user)
        assert [event["artifacts"] for event in seen.of("artifacts")] == [[REPORT]]
        assert seen.types.index("artifacts") < seen.types.index("content")
        assert await stored(engine) == {"artifacts": [REPORT]}
        async with worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
            llm.script(tool_call("present_files", {"paths": ["b", REPORT]}), says("And another."))
            seen = await turn(service, user)
            assert [event["artifacts"] for event in seen.of("artifacts")] == [[REPORT, "b"]]
            llm.script(tool_call("present_files", {"paths": ["b"]}), says("Nothing new."))
            assert (await turn(service, user)).of("artifacts") == []
    assert await stored(engine) == {"artifacts": [REPORT, "b"]}
    assert llm.violations == []


async def test_the_plan_is_told_when_it_changes(engine: AsyncEngine, tmp_path: Path):
    user = await new_user(engine)
    done = [{"content": "sum", "status": "completed"}]
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
        llm.script(tool_call("write_todos", {"todos": TODOS}), tool_call("write_todos", {"todos": done}), says("Done."))
        seen = await turn(service, user)
        assert [event["todos"] for event in seen.of("todos")] == [TODOS, done]
    assert (await stored(engine))["todos"] == done


async def test_a_turn_that_fails_leaves_what_was(engine: AsyncEngine, tmp_path: Path):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
        llm.script(tool_call("present_files", {"paths": ["a"]}), says("One."))
        await turn(service, user)
        llm.script(tool_call("present_files", {"paths": ["b"]}), close_after(2))
        assert (await turn(service, user)).of("done")[0]["status"] == "failed"
        assert await stored(engine) == {"artifacts": ["a"]}
        llm.script(tool_call("present_files", {"paths": ["c"]}), says("Three."))
        assert (await turn(service, user)).of("artifacts")[0]["artifacts"] == ["a", "c"]


async def test_a_row_of_another_version_is_read_and_what_it_knows_besides_stays(engine: AsyncEngine, tmp_path: Path):
    user = await new_user(engine)
    foreign = {
        "artifacts": ["a", 3, None],
        "todos": [{"content": "x", "status": "lost"}, *TODOS],
        "uploaded_files": "none",
        "sandbox": ["?"],
        "thread_data": {"workspace_path": "/elsewhere"},
        "viewed_images": {"a.png": {"base64": PIXEL, "mime_type": "image/png"}},
        "of_tomorrow": {"deep": [1]},
    }
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
        await turn(service, user)
        async with engine.begin() as connection:
            row = {"state": orjson.dumps(foreign).decode()}
            await connection.execute(text("update chat_sessions set thread_state = cast(:state as jsonb)"), row)
        llm.script(
            tool_call("present_files", {"paths": ["b"]}), tool_call("use_sandbox", {"code": ""}, id="c2"), says("Yes.")
        )
        seen = await turn(service, user)
        assert seen.of("artifacts")[0]["artifacts"] == ["a", "b"]
        assert "image_url" not in str([request.body for request in llm.chats])
        assert f"{tmp_path}" in str(llm.chats[-1].messages[-1])
    kept = await stored(engine)
    assert (kept["artifacts"], kept["of_tomorrow"]) == (["a", "b"], {"deep": [1]})
    assert kept["sandbox"] == {"sandbox_id": None}


async def test_d01_what_tools_and_models_say_into_the_state_is_clean(engine: AsyncEngine, tmp_path: Path):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
        llm.script(
            tool_call("present_files", orjson.dumps({"paths": ["a\x00b"]}).decode()),
            tool_call(
                "write_todos", '{"todos": [{"content": "nul\\u0000 and \\ud800", "status": "pending"}]}', id="c2"
            ),
            says("Done."),
        )
        seen = await turn(service, user)
    assert seen.of("done")[0]["status"] == "completed"
    assert await stored(engine) == {
        "artifacts": ["ab"],
        "todos": [{"content": "nul and \ufffd", "status": "pending"}],
    }


async def test_an_image_is_sent_once_and_its_bytes_are_stored_nowhere(engine: AsyncEngine, tmp_path: Path):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
        llm.script(
            tool_call("view_image", {"path": "/mnt/user-data/uploads/cat.png"}),
            tool_call("present_files", {"paths": [REPORT]}, id="c2"),
            says("A cat."),
        )
        seen = await turn(service, user)
        await turn(service, user)
        assert llm.images == [0, 1, 0, 0, 0]
        shown = llm.chats[1].messages[-1]
        assert shown["role"] == "user"
        assert llm.chats[1].messages[-2]["role"] == "tool"
        assert shown["content"][1]["text"] == "/mnt/user-data/uploads/cat.png"
        assert shown["content"][2]["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"
        assert PIXEL not in str(seen.events)
    assert llm.violations == []
    assert await everything_stored(engine, PIXEL) == []


async def test_a_model_that_refuses_images_ends_the_turn_with_a_clear_text(engine: AsyncEngine, tmp_path: Path):
    user = await new_user(engine)
    refusal = status(400, {"error": {"message": "image input is not supported", "type": "invalid_request_error"}})
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
        llm.script(tool_call("view_image", {"path": "cat.png"}), refusal, says("Hello."))
        seen = await turn(service, user)
        assert seen.of("done")[0]["status"] == "completed"
        assert seen.text.startswith("I cannot look at images")
        assert (await turn(service, user)).text == "Hello."
        assert llm.images == [0, 1, 0]
    assert llm.violations == []


async def test_a_refusal_without_images_is_an_error_as_ever(engine: AsyncEngine, tmp_path: Path):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
        llm.script(status(400, {"error": {"message": "no"}}))
        assert (await turn(service, user)).of("error")[0]["code"] == "provider_rejected"


async def test_a_sandbox_is_acquired_at_the_first_need_and_given_back(engine: AsyncEngine, tmp_path: Path):
    user, sandboxes = await new_user(engine), RememberedSandboxes()
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path, sandboxes)) as service:
        await turn(service, user)
        assert sandboxes.acquired == []
        llm.script(*(tool_call("use_sandbox", {"code": "1"}, id=f"c{number}") for number in range(2)), says("Done."))
        await turn(service, user)
        results = [message["content"] for message in llm.chats[-1].messages if message["role"] == "tool"]
    (thread_id,) = set(sandboxes.acquired)
    assert thread_id.startswith(f"{user.id}/")
    assert results == [f"sandbox of {thread_id} at {tmp_path / thread_id / 'workspace'}"] * 2
    assert sandboxes.released == [f"sandbox of {thread_id}"]
    assert await stored(engine) == {"sandbox": {"sandbox_id": None}}


async def test_a_sandbox_is_given_back_by_a_turn_that_fails_too(engine: AsyncEngine, tmp_path: Path):
    user, sandboxes = await new_user(engine), RememberedSandboxes()
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path, sandboxes)) as service:
        llm.script(tool_call("use_sandbox", {"code": "1"}), close_after(2))
        await turn(service, user)
    assert len(sandboxes.released) == 1
    assert await stored(engine) == {}


async def test_parallel_calls_share_the_sandbox(engine: AsyncEngine, tmp_path: Path):
    user, sandboxes = await new_user(engine), RememberedSandboxes()
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path, sandboxes)) as service:
        calls = [("use_sandbox", {"code": str(number)}) for number in range(3)]
        llm.script(tool_calls(*calls, ("present_files", {"paths": ["a"]}), ("present_files", {"paths": ["b"]})))
        llm.script(says("Done."))
        seen = await turn(service, user)
        assert seen.text == "Done."
        assert len({message["content"] for message in llm.chats[-1].messages if message["role"] == "tool"}) == 2
        assert seen.of("artifacts")[-1]["artifacts"] == ["a", "b"]
    assert len(sandboxes.released) == 1


async def test_a_plan_written_twice_in_one_step_goes_back_to_the_model(engine: AsyncEngine, tmp_path: Path):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
        llm.script(tool_calls(("write_todos", {"todos": TODOS}), ("write_todos", {"todos": []})), says("Sorry."))
        seen = await turn(service, user)
        assert (seen.text, seen.of("todos")) == ("Sorry.", [])
    assert llm.violations == []


async def test_two_sandboxes_for_one_thread_are_an_error(engine: AsyncEngine, tmp_path: Path):
    user, sandboxes = await new_user(engine), RememberedSandboxes(conflicting=True)
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path, sandboxes)) as service:
        llm.script(tool_call("use_sandbox", {"code": "1"}), tool_call("use_sandbox", {"code": "2"}, id="c2"))
        seen = await turn(service, user)
        assert seen.of("error")[0]["code"] == "internal_error"
        assert (await turn(service, user)).of("done")[0]["status"] == "completed"
    assert llm.violations == []


async def test_e10_a_turn_stopped_within_a_tool_leaves_no_call_and_keeps_what_was_told(
    engine: AsyncEngine, tmp_path: Path
):
    user, sandboxes = await new_user(engine), RememberedSandboxes()
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path, sandboxes)) as service:
        llm.script(
            tool_call("present_files", {"paths": ["a"]}),
            tool_call("use_sandbox", {"code": ""}, id="c2"),
            tool_call("sleep", {}, id="c3"),
            says("Good morning."),
        )
        started = await service.start_turn(user, ask("q"), "en")
        await llm.wait_for_chats(3)
        await llm.chats[2].ended.wait()
        await service.stop(user, started.run_id)
        seen = await read(service, user, started.run_id)
        assert (seen.of("done")[0]["status"], seen.of("artifacts")[0]["artifacts"]) == ("stopped", ["a"])
        assert await stored(engine) == {"artifacts": ["a"], "sandbox": {"sandbox_id": None}}
        assert (await turn(service, user, "again")).text == "Good morning."
        assert [message["role"] for message in llm.chats[-1].messages] == ["system", "user"]
    assert len(sandboxes.released) == 1
    assert llm.violations == []


async def test_a_worker_that_is_killed_in_a_turn_leaves_the_state_of_the_turn_before(
    engine: AsyncEngine, tmp_path: Path
):
    user = await new_user(engine)
    async with FakeLLM() as llm:
        async with worker(
            engine, llm, drain=False, lease_seconds=0.5, tools=TOOLS, threads=threads(tmp_path)
        ) as service:
            llm.script(tool_call("present_files", {"paths": ["a"]}), says("One."))
            await turn(service, user)
            llm.script(tool_call("present_files", {"paths": ["b"]}), tool_call("sleep", {}, id="c2"))
            started = await service.start_turn(user, ask("q"), "en")
            await llm.wait_for_chats(4)
            await llm.chats[3].ended.wait()
        async with worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:

            async def repaired() -> bool:
                return (await service.run_info(user, started.run_id)).status == "interrupted"

            await until(repaired)
            assert await stored(engine) == {"artifacts": ["a"]}
            llm.script(tool_call("present_files", {"paths": ["c"]}), says("Three."))
            assert (await turn(service, user)).of("artifacts")[0]["artifacts"] == ["a", "c"]
    assert llm.violations == []


async def test_f01_tools_of_a_thread_called_for_ever_end_within_the_budget(engine: AsyncEngine, tmp_path: Path):
    user = await new_user(engine)

    def alternate(request: Request) -> Reply:
        count = len(request.messages)
        calls = [
            tool_call("write_todos", {"todos": TODOS}, id=f"c{count}"),
            tool_call("view_image", {"path": "a.png"}, id=f"c{count}"),
        ]
        return calls[count // 2 % 2]

    async with FakeLLM(default=alternate) as llm:
        async with worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
            seen = await turn(service, user)
        assert len(llm.chats) == 4
    assert seen.of("done")[0]["flags"] == ["limit_reached"]
    assert seen.of("done")[0]["status"] == "completed"
    assert llm.violations == []


async def test_d07_what_a_row_holds_does_not_grow_with_images_and_tool_results(engine: AsyncEngine, tmp_path: Path):
    user, sizes = await new_user(engine), list[int]()
    async with FakeLLM() as llm, worker(engine, llm, tools=TOOLS, threads=threads(tmp_path)) as service:
        for _ in range(10):
            llm.script(
                tool_calls(("read_much", {}), ("view_image", {"path": "a.png"}), ("present_files", {"paths": ["a"]})),
                says("Seen."),
            )
            await turn(service, user)
            async with engine.connect() as connection:
                query = "select octet_length(thread_state::text) from chat_sessions"
                sizes.append((await connection.execute(text(query))).scalar_one())
    assert set(sizes) == {len('{"artifacts": ["a"]}')}
    assert await everything_stored(engine, "0123456789" * 10) == []


async def everything_stored(engine: AsyncEngine, wanted: str) -> list[str]:
    """The tables that hold ``wanted`` in any column."""
    query = "select table_name from information_schema.tables where table_schema = 'public'"
    async with engine.connect() as connection:
        names = list((await connection.execute(text(query))).scalars())
        found = []
        for name in names:
            matching = text(f"select count(*) from {name} t where t::text like '%' || :wanted || '%'")
            if (await connection.execute(matching, {"wanted": wanted})).scalar_one():
                found.append(name)
    return found
