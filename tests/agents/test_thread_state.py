from typing import get_type_hints

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, StateGraph

from backend.agents.thread_state import (
    SandboxState,
    ThreadDataState,
    ThreadState,
    ViewedImageData,
    merge_artifacts,
    merge_viewed_images,
)

CAT: ViewedImageData = {"base64": "Y2F0", "mime_type": "image/png"}
DOG: ViewedImageData = {"base64": "ZG9n", "mime_type": "image/jpeg"}


@pytest.mark.parametrize(
    ("existing", "new", "merged"),
    [
        (None, None, []),
        (None, [], []),
        (None, ["a"], ["a"]),
        (["a"], None, ["a"]),
        (["a"], [], ["a"]),
        (["b", "a"], ["c", "a", "c"], ["b", "a", "c"]),
        (["./a"], ["a"], ["./a", "a"]),
    ],
)
def test_artifacts_keep_the_first_occurrence_and_order(existing, new, merged):
    assert merge_artifacts(existing, new) == merged


@pytest.mark.parametrize(
    ("existing", "new", "merged"),
    [
        (None, None, {}),
        (None, {}, {}),
        (None, {"a": CAT}, {"a": CAT}),
        ({"a": CAT}, None, {"a": CAT}),
        ({"a": CAT}, {}, {}),
        ({"a": CAT, "b": CAT}, {"a": DOG, "c": DOG}, {"a": DOG, "b": CAT, "c": DOG}),
    ],
)
def test_viewed_images_merge_and_an_empty_one_clears(existing, new, merged):
    assert merge_viewed_images(existing, new) == merged


def test_reducers_leave_their_inputs_alone():
    artifacts, images = ["a"], {"a": CAT}
    merge_artifacts(artifacts, ["b"])
    merge_viewed_images(images, {"b": DOG})
    assert (artifacts, images) == (["a"], {"a": CAT})


def test_shapes_are_those_of_the_protocol():
    assert SandboxState.__optional_keys__ == {"sandbox_id"}
    assert ThreadDataState.__optional_keys__ == {"workspace_path", "uploads_path", "outputs_path"}
    assert ViewedImageData.__required_keys__ == {"base64", "mime_type"}
    fields = {"sandbox", "thread_data", "title", "artifacts", "todos", "uploaded_files", "viewed_images"}
    assert fields <= set(get_type_hints(ThreadState))


async def test_a_graph_merges_by_the_reducers_and_the_last_write_wins_elsewhere():
    graph = StateGraph(ThreadState)
    graph.add_node("one", lambda state: {"artifacts": ["a"], "viewed_images": {"a": CAT}, "title": "one"})
    graph.add_node("two", lambda state: {"artifacts": ["b", "a"], "viewed_images": {}, "title": "two"})
    graph.add_edge(START, "one")
    graph.add_edge("one", "two")
    graph.add_edge("two", END)
    state = await graph.compile().ainvoke({"messages": [HumanMessage("hi")]})
    assert (state["artifacts"], state["viewed_images"], state["title"]) == (["a", "b"], {}, "two")
    assert "sandbox" not in state
