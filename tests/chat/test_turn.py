"""One turn: claimed once, produced detached, stored before its end is told, whatever happens to it."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from backend.chat import turn as turn_module
from backend.chat.answer_filter import AnswerFilter
from backend.chat.turn import RunHandle
from backend.errors import IdempotencyConflict, MessageTooLarge, RunActive, StaleHitl
from backend.infra.database.engine import transaction
from tests.chat.workers import ask, new_user, read, until_text, whole_turn, worker
from tests.rag.library import MemoryLibrary
from tests.support.fake_llm import FakeLLM, chunks, close_after, hang_after, tool_call, wait
from tests.support.fake_llm import text as says
from tests.support.fake_llm_replies import delta
from tests.support.waiting import until

SEARCH = tool_call("search_knowledge_base", {"query": "warranty"})


async def counts(engine: AsyncEngine) -> tuple[int, int]:
    """Runs and messages there are."""
    async with engine.connect() as connection:
        query = "select (select count(*) from runs), (select count(*) from chat_messages)"
        row = (await connection.execute(text(query))).one()
    return row[0], row[1]


async def test_the_end_is_stored_before_it_is_told(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        llm.script(SEARCH, says("It lasts 24 months [1]. [7]"))
        turn = await service.start_turn(user, ask(), "en")
        async for batch in service.follow(user, turn.run_id, 0):
            if b'"type":"trace"' in batch[-1].data or b'"type":"done"' in batch[-1].data:
                assert (await service.run_info(user, turn.run_id)).status == "completed"
        answer = await service.answer(user, turn)
        seen = await read(service, user, turn.run_id)
    assert answer.response == seen.text == "It lasts 24 months [1]. "
    (citation,) = answer.citations
    assert (citation.index, citation.filename, citation.page_number) == (1, "pump.pdf", 17)
    assert citation.quote == "The warranty lasts 24 months."
    assert seen.of("citations")[0]["citations"] == [citation.model_dump(mode="json")]
    assert answer.rag_trace == seen.of("trace")[0]["rag_trace"]
    assert answer.usage is not None
    assert seen.of("rag_step")[0]["step"]["label"] == "Question received"
    assert len(seen.of("rag_step")) > 1


async def test_the_title_comes_with_the_first_turn_only(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        first = await whole_turn(service, user, ask("What\n is it?"))
        second = await whole_turn(service, user, ask("And that?"))
        titles = [(await read(service, user, item.run_id)).of("session_title") for item in (first, second)]
        assert (await service.sessions(user)).sessions[0].title == "What is it?"
    assert [event["title"] for event in titles[0]] == ["What is it?"]
    assert titles[1] == []


async def test_b10_the_next_prompt_holds_what_was_stored(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, context_messages=2) as service:
        llm.script(says("one [1]"), says("two"), says("three"))
        for question in ("q1", "q2", "q3"):
            await whole_turn(service, user, ask(question))
    prompts = [[message["content"] for message in request.messages[1:]] for request in llm.chats]
    assert prompts == [["q1"], ["q1", "one ", "q2"], ["q2", "two", "q3"]]


async def test_c03_a_prompt_is_built_from_the_database_alone(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        await whole_turn(service, user, ask("q1"))
        async with transaction(engine) as connection:
            await connection.execute(text("update chat_messages set content = 'changed' where type = 'ai'"))
        await whole_turn(service, user, ask("q2"))
    assert [message["content"] for message in llm.chats[-1].messages[1:3]] == ["q1", "changed"]


async def test_b06_parallel_claims_with_one_key_are_one_turn_on_any_worker(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as one, worker(engine, llm) as two:
        llm.script(says("once", delay=0.05))
        request = ask(client_message_id="k")
        turns = await asyncio.gather(*(service.start_turn(user, request, "en") for service in [one, two] * 10))
        assert len({turn.run_id for turn in turns}) == 1
        answers = await asyncio.gather(*(service.answer(user, turns[0]) for service in (one, two)))
        assert answers[0] == answers[1]
        with pytest.raises(IdempotencyConflict):
            await one.start_turn(user, ask("else", client_message_id="k"), "en")
    assert len(llm.chats) == 1
    assert await counts(engine) == (1, 2)


async def test_b09_parallel_turns_on_one_session_have_one_winner_and_losers_write_nothing(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as one, worker(engine, llm) as two:
        for number in range(3):
            llm.script(says(f"answer {number}", delay=0.05))
            results = await asyncio.gather(
                *(service.start_turn(user, ask(f"{number}.{n}"), "en") for n, service in enumerate([one, two] * 5)),
                return_exceptions=True,
            )
            (winner,) = [item for item in results if not isinstance(item, BaseException)]
            refused = [item for item in results if isinstance(item, RunActive)]
            assert len(refused) == 9
            assert {item.fields["run_id"] for item in refused} == {str(winner.run_id)}
            assert (await one.answer(user, winner)).response == f"answer {number}"
            assert await counts(engine) == (number + 1, 2 * number + 2)
        kinds = [item.type for item in (await two.messages(user, "s")).messages]
    assert kinds == ["human", "ai"] * 3


async def test_what_is_refused_writes_nothing(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, max_message_chars=10) as service:
        with pytest.raises(MessageTooLarge):
            await service.start_turn(user, ask("x" * 11), "en")
        with pytest.raises(StaleHitl):
            await service.start_turn(user, ask("x", hitl_id="gone"), "en")
        assert (await service.sessions(user)).sessions == []
    assert await counts(engine) == (0, 0)
    assert llm.chats == []


async def test_a_client_that_leaves_while_claiming_does_not_leave_a_run_that_nobody_produces(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, lease_seconds=600) as service:
        async with transaction(engine) as connection:
            await connection.execute(text("select 1 from users for update"))
            starting = asyncio.create_task(service.start_turn(user, ask(), "en"))
            await asyncio.sleep(0.3)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)

        async def answered() -> bool:
            return [item.status for item in (await service.messages(user, "s")).messages] == ["completed"] * 2

        await until(answered)


async def test_a14_an_answer_that_breaks_off_is_kept_and_failed(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        llm.script(SEARCH, close_after(5))
        turn = await whole_turn(service, user)
        answer = await service.answer(user, turn)
        seen = await read(service, user, turn.run_id)
    assert (answer.status, answer.response, answer.finish_reason) == ("failed", "one two three four five ", None)
    assert answer.error is not None
    assert answer.error.code == "provider_protocol"
    assert seen.types[-4:] == ["trace", "citations", "error", "done"]
    assert seen.of("trace")[0]["rag_trace"]["query"] == "warranty"


class BrokenLibrary(MemoryLibrary):
    """A library with a fault that nobody foresaw."""

    async def recall(self, *args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("secret detail")


async def test_an_unforeseen_fault_is_an_internal_error_without_its_text(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, library=BrokenLibrary([])) as service:
        turn = await whole_turn(service, user)
        answer = await service.answer(user, turn)
        seen = await read(service, user, turn.run_id)
    assert answer.status == "failed"
    assert answer.error is not None
    assert answer.error.code == "internal_error"
    assert "secret" not in str(seen.events)
    assert "Zero" not in str(seen.events)


class DeafLibrary(MemoryLibrary):
    """A search that does not hear that it was cancelled."""

    async def recall(self, *args: Any, **kwargs: Any) -> Any:
        for _ in range(2):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue
        return await super().recall(*args, **kwargs)


async def test_a16_a_stop_is_a_stop_even_if_the_answer_does_not_hear_it(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(turn_module, "CANCEL_SECONDS", 0.2)
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm, library=DeafLibrary([])) as service:
        llm.script(SEARCH)
        turn = await service.start_turn(user, ask(), "en")
        await llm.wait_for_chats(1)
        await asyncio.wait_for(llm.chats[0].ended.wait(), 30)
        await asyncio.sleep(0.3)
        handle = service._runs.handle(turn.run_id)
        assert handle is not None
        await service.stop(user, turn.run_id)
        assert (await service.answer(user, turn)).status == "stopped"
        assert handle.agent is not None
        handle.agent.cancel()
        await asyncio.wait([handle.agent])


async def test_a_stop_that_comes_with_an_error_is_a_stop(engine: AsyncEngine):
    """A fault of the code that is torn down says nothing about the provider."""
    user = await new_user(engine)

    class Falls(MemoryLibrary):
        async def recall(self, *args: Any, **kwargs: Any) -> Any:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None

    async with FakeLLM() as llm, worker(engine, llm, library=Falls([])) as service:
        llm.script(SEARCH)
        turn = await service.start_turn(user, ask(), "en")
        await asyncio.wait_for(llm.wait_for_chats(1), 30)
        await asyncio.wait_for(llm.chats[0].ended.wait(), 30)
        await asyncio.sleep(0.3)
        await service.stop(user, turn.run_id)
        answer = await service.answer(user, turn)
    assert (answer.status, answer.error) == ("stopped", None)


async def test_a_stop_after_the_last_token_does_not_change_a_whole_answer(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        llm.script(says("all of it"))
        turn = await service.start_turn(user, ask(), "en")
        handle = service._runs.handle(turn.run_id)
        assert handle is not None
        await until(lambda: ended(handle))
        await service.stop(user, turn.run_id)
        answer = await service.answer(user, turn)
    assert (answer.status, answer.response) == ("completed", "all of it")


def ended(handle: RunHandle) -> bool:
    return handle.agent is not None and handle.agent.done()


async def test_a16_stop_before_the_first_step(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        turn = await service.start_turn(user, ask(), "en")
        handle = service._runs.handle(turn.run_id)
        assert handle is not None
        handle.cancel("stop")
        answer = await service.answer(user, turn)
    assert (answer.status, answer.response) == ("stopped", "")
    assert llm.chats == []


async def test_b02_nobody_watches_and_the_answer_is_whole(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        llm.script(wait(0.2, SEARCH), says("It lasts 24 months [1]."))
        turn = await service.start_turn(user, ask(), "en")
        assert (await service.answer(user, turn)).response == "It lasts 24 months [1]."
        assert service.subscriptions.count == 0


async def test_d01_nul_and_surrogates_from_a_model_do_not_break_the_turn(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        escaped = rb'data: {"choices": [{"index": 0, "delta": {"content": "x\u0000y\ud800"}}]}' + b"\n\n"
        ending = delta({"content": "\x00z"}, finish="stop")
        llm.script(tool_call("search_knowledge_base", {"query": "a\x00b\ud800"}), chunks(escaped, ending))
        turn = await whole_turn(service, user, ask("q\x00\ud800"))
        answer = await service.answer(user, turn)
        seen = await read(service, user, turn.run_id)
        question = (await service.messages(user, "s")).messages[0].content
    assert (answer.status, answer.response) == ("completed", "xy\ufffdz")
    assert seen.text == answer.response
    assert question == "q\ufffd"
    assert answer.rag_trace is not None
    assert answer.rag_trace["query"].startswith("ab\ufffd")


async def test_a_deleted_session_ends_its_run_and_the_run_cannot_come_back(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        llm.script(hang_after(2))
        turn = await service.start_turn(user, ask(), "en")
        await until_text(service, user, turn.run_id, "two")
        await service.delete(user, "s")
        await until(lambda: service.active_runs == 0)
        assert (await service.messages(user, "s")).messages == []
    assert await counts(engine) == (0, 0)


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_the_texts_are_those_of_the_language_that_was_asked_in(engine: AsyncEngine, language: Any):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        llm.script(close_after(1))
        turn = await service.start_turn(user, ask(), language)
        seen = await read(service, user, turn.run_id)
        step, error = seen.of("rag_step")[0]["step"]["label"], seen.of("error")[0]["content"]
    assert step == {"en": "Question received", "zh": "已收到问题"}[language]
    assert error.isascii() == (language == "en")


async def test_i07_markers_are_equal_in_stream_store_and_reload(engine: AsyncEngine):
    user = await new_user(engine)
    async with FakeLLM() as llm, worker(engine, llm) as service:
        llm.script(SEARCH, says("", tokens=["a [", "1", "]", " [2", "] [0][ID:1] `x[1]` ", "a[1", " end ["]))
        turn = await whole_turn(service, user)
        seen = await read(service, user, turn.run_id)
        stored = (await service.messages(user, "s")).messages[-1]
    plain = AnswerFilter(lambda number: number == 1)
    whole = plain.feed("a [1] [2] [0][ID:1] `x[1]` a[1 end [") + plain.flush()
    assert seen.text == stored.content == whole
    assert [item.index for item in stored.citations] == [1]
