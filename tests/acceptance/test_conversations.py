"""Six conversations as a frontend plays them, with the server started anew before any of their messages.

Once without a model, once with a model that decides and answers. The documents are those of the table of routes.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import URL

from tests.acceptance.asking import clarify, good, hitl_of, pending, scope_select, upload
from tests.acceptance.rack import Rack, rack
from tests.support.chat_client import Client, Stream
from tests.support.fake_llm import decided

pytestmark = pytest.mark.asyncio(loop_scope="module")
DOCUMENTS = Path(__file__).parent.parent / "rag" / "routes" / "documents"
FACT = "How much water does the P200 move per minute?"
COMPARISON = "Compare the warranty of the P100 and the P200."
OPEN = "How fast does support answer?"
SEVERAL = "How long does the probation period last?"
UNKNOWN = "What is the capital of Mongolia?"
WEAK = "so flying business, when am I even allowed to?"
REWRITTEN = "When may business class be booked?"

Ask = Callable[..., Awaitable[Stream]]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["extractive", "model"])
async def at(postgres_url: URL, valkey_url: str, worker_id: str, request: pytest.FixtureRequest) -> AsyncIterator[Rack]:
    env = {"LEASE_SECONDS": "2"}
    if request.param == "extractive":
        env |= {"LLM_BASE_URL": "", "LLM_MODEL": ""}
    async with rack(postgres_url, valkey_url, f"conversations_{request.param}_{worker_id}", env) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alice(at: Rack) -> AsyncIterator[Client]:
    """One user, whose documents stay: each test has a session of its own."""
    async with at.user() as client:
        await upload(
            client, {path.name: path.read_text(encoding="utf-8") for path in sorted(DOCUMENTS.glob("[a-z]*.md"))}
        )
        yield client


def has_model(at: Rack) -> bool:
    return bool(at.server.env["LLM_BASE_URL"])


def trace_of(seen: Stream) -> dict[str, Any]:
    return seen.one("trace")["rag_trace"]


def cited(seen: Stream) -> set[str]:
    return {citation["filename"] for citation in seen.one("citations")["citations"]}


def completed(seen: Stream, reason: str = "stop") -> None:
    done = seen.one("done")
    assert (done["status"], done["finish_reason"], done["flags"]) == ("completed", reason, [])
    assert seen.of("error") == []


def given(request: Any) -> dict[str, Any]:
    """What a decision was asked about."""
    return json.loads(request.messages[-1]["content"])


async def single_fact(at: Rack, ask: Ask) -> None:
    seen = await ask(FACT)
    completed(seen)
    assert "90 litres" in seen.text
    assert cited(seen) == {"pump-p200.md"}
    trace = trace_of(seen)
    assert (trace["complexity"], trace["route"], trace["retrieval_status"]) == ("simple", "answer", "answerable")
    if has_model(at):
        assert at.llm.decisions("plan") == []
        (grading,) = at.llm.decisions("grade")
        assert given(grading)["question"] == FACT
        assert [len(request.body.get("tools", [])) > 0 for request in at.llm.chats] == [True, True]


async def comparison(at: Rack, ask: Ask) -> None:
    parts = ["What is the warranty of the P100?", "What is the warranty of the P200?"]
    at.llm.decide("plan", decided(complexity="complex", reason="a comparison", sub_questions=parts))
    seen = await ask(COMPARISON)
    completed(seen)
    trace = trace_of(seen)
    assert (trace["complexity"], trace["sub_agent_count"], trace["retrieval_stage"]) == ("complex", 2, "synthesis")
    assert len(trace["sub_traces"]) == len(trace["sub_questions"]) == 2
    assert {chunk["filename"] for chunk in trace["retrieved_chunks"]} >= {"pump-p100.md", "pump-p200.md"}
    groups = {step["group"] for event in seen.of("rag_step") if (step := event["step"]).get("group")}
    assert len(groups) == 2
    if has_model(at):
        assert given(at.llm.decisions("plan")[0])["question"] == COMPARISON
        assert {given(request)["question"] for request in at.llm.decisions("grade")[-2:]} == set(parts)
        tool = at.llm.chats[-1].messages[-1]["content"]
        assert "pump-p100.md" in tool
        assert "pump-p200.md" in tool
    else:
        assert cited(seen) == {"pump-p100.md", "pump-p200.md"}
        assert "24 months" in seen.text
        assert "36 months" in seen.text


async def clarification(at: Rack, ask: Ask) -> None:
    calls = len(at.llm.chats)
    at.llm.decide("grade", clarify("Which plan do you mean?", ["Starter", "Business"]))
    seen = await ask(OPEN)
    completed(seen, "clarification")
    hitl = hitl_of(seen)
    assert (hitl["route"], hitl["original_question"]) == ("clarify", OPEN)
    assert {"Starter", "Business"} <= set(hitl["options"])
    assert seen.text == ""
    answer = await ask("Business", hitl_id=hitl["id"])
    completed(answer)
    assert "four hours" in answer.text
    assert cited(answer) == {"service-plans.md"}
    trace = trace_of(answer)
    assert (trace["hitl_resumed"], trace["hitl_answer"]) == (True, "Business")
    assert (trace["hitl_resume_from_route"], trace["query"]) == ("clarify", f"{OPEN} Business")
    if has_model(at):
        assert len(at.llm.chats) == calls + 2
        assert given(at.llm.decisions("grade")[-1])["question"] == f"{OPEN} Business"
        roles = [message["role"] for message in at.llm.chats[-1].messages[-5:]]
        assert roles == ["user", "assistant", "user", "assistant", "tool"]
    else:
        first = answer.text.split("\n\n")[1]
        assert "four hours" in first


async def choice(at: Rack, ask: Ask) -> None:
    at.llm.decide("grade", scope_select(["handbook-berlin.md", "handbook-madrid.md"]))
    seen = await ask(SEVERAL)
    completed(seen, "clarification")
    hitl = hitl_of(seen)
    assert (hitl["route"], hitl["retrieval_status"]) == ("scope_select", "needs_scope_selection")
    assert set(hitl["options"]) == {"handbook-berlin.md", "handbook-madrid.md"}
    number = hitl["options"].index("handbook-madrid.md") + 1
    answer = await ask(str(number), hitl_id=hitl["id"])
    completed(answer)
    assert "four months" in answer.text
    assert cited(answer) == {"handbook-madrid.md"}
    trace = trace_of(answer)
    assert (trace["hitl_resumed"], trace["hitl_answer"]) == (True, "handbook-madrid.md")
    if has_model(at):
        passages = at.llm.chats[-1].messages[-1]["content"]
        assert "handbook-berlin.md" not in passages


async def unknown(at: Rack, ask: Ask) -> None:
    none = decided(relevance="none", answerability="none", ambiguity="none", route="no_knowledge", confidence=0.9)
    at.llm.decide("grade", none)
    seen = await ask(UNKNOWN)
    completed(seen)
    trace = trace_of(seen)
    assert (trace["route"], trace["retrieval_status"], trace["retrieved_chunks"]) == (
        "no_knowledge",
        "no_knowledge",
        [],
    )
    assert seen.one("citations")["citations"] == []
    assert "[1]" not in seen.text
    assert seen.text.strip()
    if has_model(at):
        assert at.llm.chats[-1].messages[-1]["content"].startswith("NO_KNOWLEDGE")


async def weak_wording(at: Rack, ask: Ask) -> None:
    weak = decided(relevance="weak", answerability="none", ambiguity="none", route="rewrite", confidence=0.4)
    at.llm.decide("grade", weak, good())
    at.llm.decide("rewrite", decided(method="step_back", text=REWRITTEN))
    seen = await ask(WEAK)
    completed(seen)
    trace = trace_of(seen)
    assert (trace["retrieval_stage"], trace["rewrite_method"], trace["route"]) == ("rewritten", "step_back", "answer")
    assert trace["rewritten_query"]
    assert trace["rewrite_retrieved_chunks"]
    assert any("eight hours" in chunk["text"] for chunk in trace["retrieved_chunks"])
    if has_model(at):
        assert given(at.llm.decisions("rewrite")[-1])["question"] == WEAK
        assert trace["rewritten_query"] == REWRITTEN
        assert len(at.llm.decisions("grade")) >= 2
    else:
        assert "eight hours" in seen.text
        assert cited(seen) == {"travel-expenses.md"}


ALL = [single_fact, comparison, clarification, choice, unknown, weak_wording]


@pytest.mark.parametrize("conversation", ALL, ids=[one.__name__ for one in ALL])
async def test_a_conversation(at: Rack, alice: Client, conversation: Callable[[Rack, Ask], Awaitable[None]]):
    at.llm.requests.clear()
    session = conversation.__name__
    await conversation(at, partial(alice.ask, session_id=session))
    assert await pending(alice, session) is None
    await at.check()


@pytest.mark.timeout(600)
async def test_all_of_them_in_one_session_with_a_restart_before_every_message(at: Rack, alice: Client):
    asked: list[tuple[str, Stream]] = []

    async def ask(message: str, **fields: Any) -> Stream:
        before = await pending(alice, "all")
        if len(asked) % 2:
            await at.server.kill9()
        await at.server.restart()
        await at.flush_redis()
        assert await pending(alice, "all") == before
        seen = await alice.ask(message, "all", **fields)
        asked.append((message, seen))
        return seen

    for conversation in (clarification, choice, single_fact, comparison, weak_wording, unknown):
        at.llm.requests.clear()
        await conversation(at, ask)
    messages = await alice.messages("all")
    assert [message["content"] for message in messages[::2]] == [message for message, _ in asked]
    for message, (_, seen) in zip(messages[1::2], asked, strict=True):
        assert message["content"].startswith(seen.text)
        assert message["rag_trace"] == trace_of(seen)
    await at.check(*(seen for _, seen in asked))
