import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

from backend.agents.lead import build_lead_agent, recursion_limit
from backend.catalogue import say
from backend.infra.llm.extractive import ExtractiveChatModel
from tests.agents.tools.running import context


@tool
def search_knowledge_base(query: str) -> str:
    """Searches."""
    return f"found {query}"


async def run(max_calls: int, language="en"):
    model = ExtractiveChatModel(answer_rule=lambda question, passages: f"answer to {question}", streaming=True)
    agent = build_lead_agent(model, [search_knowledge_base], system_prompt="rules", max_model_calls=max_calls)
    config = {"recursion_limit": recursion_limit(max_calls)}
    updates = [
        update
        async for chunk in agent.astream(
            {"messages": [HumanMessage("why")]}, config, context=context(language), stream_mode="updates"
        )
        for update in chunk.values()
        if update
    ]
    messages = [message for update in updates for message in update.get("messages", [])]
    return messages, any(update.get("limit_reached") for update in updates)


@pytest.mark.parametrize(("max_calls", "flagged"), [(2, True), (3, False)])
async def test_the_answer_of_the_last_call_is_flagged_and_others_are_not(max_calls, flagged):
    messages, limit_reached = await run(max_calls)
    assert [message.content for message in messages] == ["", "found why", "answer to why"]
    assert limit_reached is flagged


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_a_spent_budget_ends_with_a_text_of_the_catalogue(language):
    messages, limit_reached = await run(1, language)
    assert messages[-1].content == say("limit_reached", language)
    assert messages[-1].response_metadata == {"finish_reason": "limit"}
    assert limit_reached
