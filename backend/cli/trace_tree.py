"""The stored trace of an answer as a tree for the terminal: what is stored, and of numbers the differences."""

from collections.abc import Sequence
from typing import Any, cast

from rich.text import Text
from rich.tree import Tree

from backend.cli.following import place, source_line
from backend.cli.output import one_line

Json = dict[str, Any]
_QUOTE_CHARS = 100
_STAGES = {
    "initial": "first search",
    "rewritten": "second search, with a rewritten question",
    "synthesis": "one search for each part of the question",
    "hitl_targeted_retrieval": "search with what was asked back",
}


def message_tree(message: Json, seconds: float | None, steps: Sequence[Json]) -> Tree:
    """The path of an answer (``MessageInfo``). ``seconds``: the whole run; ``steps``: its steps with their times."""
    tree = Tree(_line(f"Answer {message['id']}", message["status"], *_ends(message, seconds)))
    if steps:
        _add(tree, "Steps", [_step(step) for step in steps])
    trace = message.get("rag_trace")
    if trace is None:
        tree.add(_line("No search: the answer was given without the documents"))
    else:
        _add_search(tree, trace)
    _add(tree, "Cited", [source_line(item) for item in _list(message, "citations")])
    return tree


def _ends(message: Json, seconds: float | None) -> list[str]:
    usage = message.get("usage")
    return [
        message["timestamp"],
        f"{seconds:.1f} s" if seconds is not None else "",
        f"ended by {message['finish_reason']}" if message.get("finish_reason") else "",
        f"{usage['input_tokens']} + {usage['output_tokens']} tokens" if usage else "",
        *_list(message, "flags"),
    ]


def _step(step: Json) -> str:
    """The time of a step since the question came, then what it says."""
    group = f"[{step['group_label']}] " if step.get("group_label") else ""
    detail = f" · {step['detail']}" if step.get("detail") else ""
    return f"{step['elapsed_ms']:>8.0f} ms  {one_line(group + step['label'] + detail)}"


def _add_search(tree: Tree, trace: Json) -> None:
    """One branch a stage, in the order in which they ran; a stage that left nothing in the trace has none."""
    stage = str(trace.get("retrieval_stage", ""))
    tree.add(_line("Question", trace.get("query", ""), _STAGES.get(stage, stage)))
    _add_plan(tree, trace)
    _add_resumed(tree, trace)
    if parts := _list(trace, "sub_traces"):
        _add_parts(tree, trace, parts)
    else:
        _add_recall(tree, trace)
        _add_rewrite(tree, trace)
        _add_merge(tree, trace)
        _add_rerank(tree, trace)
    _add_grade(tree, trace)
    _add_decision(tree, trace)
    _add_asked_back(tree, trace)
    _add_result(tree, trace)


def _add_parts(tree: Tree, trace: Json, parts: Sequence[Json]) -> None:
    """The parts with all their stages, and how many of their passages are the evidence of the whole question."""
    questions = _list(trace, "sub_questions")
    for number, part in enumerate(parts, start=1):
        asked = part.get("query") or (questions[number - 1] if number <= len(questions) else "")
        _add_search(tree.add(_line(f"Part {number}")), {"query": asked, **part})
    kept = [len(_list(part, "retrieved_chunks")) for part in parts if part.get("route") != "no_knowledge"]
    merged = trace.get("synthesis_merged_count")
    together = tree.add(_line("Put together", f"{sum(kept)} passages of {len(kept)} parts", _left(merged)))
    _add_dropped(together, sum(kept), merged, "found by several parts, or beyond the number that is kept")


def _add_plan(tree: Tree, trace: Json) -> None:
    if not trace.get("complexity"):
        return
    plan = tree.add(_line("Plan", trace["complexity"], trace.get("complexity_reason", "")))
    for question in _list(trace, "sub_questions"):
        plan.add(_line(question))


def _add_recall(tree: Tree, trace: Json) -> None:
    found, count = _list(trace, "initial_retrieved_chunks"), trace.get("recall_count")
    if trace.get("hitl_resumed") or (count is None and not found):
        return
    if _rewritten(trace):
        count = len(found)  # the counts of the trace are those of the second search
    wanted = f"of {trace['candidate_k']} wanted" if "candidate_k" in trace else ""
    level = f"level {trace['leaf_retrieve_level']}" if "leaf_retrieve_level" in trace else ""
    recall = tree.add(
        _line("Recall", f"{len(found) if count is None else count} passages", wanted, _mode(trace), level)
    )
    if trace.get("candidate_k_config_error"):
        recall.add(_line(trace["candidate_k_config_error"]))
    _add_recalled(recall, found, trace)


def _add_recalled(branch: Tree, found: Sequence[Json], trace: Json) -> None:
    """What a search found; a passage that is no evidence itself may be so within its section."""
    used = {chunk.get("chunk_id") for chunk in _list(trace, "retrieved_chunks")}
    for number, chunk in enumerate(found, start=1):
        branch.add(_chunk(number, chunk, "" if chunk.get("chunk_id") in used else "not in the evidence"))


def _mode(trace: Json) -> str:
    return {"dense": "by meaning only", "sparse": "by words only"}.get(trace.get("retrieval_mode", ""), "hybrid")


def _add_merge(tree: Tree, trace: Json) -> None:
    if "auto_merge_enabled" not in trace:
        return
    if not trace["auto_merge_enabled"]:
        tree.add(_line("Merge", "off"))
    elif not trace.get("auto_merge_applied"):
        tree.add(_line("Merge", "nothing to merge", _left(trace.get("post_merge_candidate_count"))))
    else:
        tree.add(
            _line(
                "Merge",
                f"{trace.get('auto_merge_replaced_chunks', 0)} passages replaced by their sections",
                f"{trace.get('auto_merge_steps', 0)} of 2 levels",
                _left(trace.get("post_merge_candidate_count")),
            )
        )


def _add_rerank(tree: Tree, trace: Json) -> None:
    if "rerank_enabled" not in trace:
        return
    into, kept, above = (trace.get(name) for name in ("candidate_count", "post_rerank_count", "post_threshold_count"))
    state = "applied" if trace.get("rerank_applied") else "not applied" if trace["rerank_enabled"] else "off"
    model = " ".join(str(trace[name]) for name in ("rerank_model", "rerank_endpoint") if trace.get(name))
    error = f"error {trace['rerank_error']}" if trace.get("rerank_error") else ""
    branch = tree.add(_line("Rerank", state, model, error, _left(kept if above is None else above)))
    _add_dropped(branch, into, kept, f"cut to the best {trace.get('retrieval_top_k', kept)}")
    _add_dropped(branch, kept, above, f"below the score floor {trace.get('rerank_min_score', '')}")


def _add_dropped(branch: Tree, before: int | None, after: int | None, why: str) -> None:
    if before is not None and after is not None and before > after:
        branch.add(_line(f"dropped {before - after}", why))


def _add_grade(tree: Tree, trace: Json) -> None:
    judged = [
        f"{name} {trace[f'evidence_{name}']}"
        for name in ("relevance", "answerability", "ambiguity", "confidence")
        if trace.get(f"evidence_{name}") is not None
    ]
    if judged or trace.get("evidence_reason"):
        tree.add(_line("Grade", *judged, trace.get("evidence_reason", ""), _slots(trace)))


def _slots(trace: Json) -> str:
    slots = _list(trace, "missing_slots")
    return f"missing: {', '.join(slots)}" if slots else ""


def _add_decision(tree: Tree, trace: Json) -> None:
    if not trace.get("route"):
        return
    decision = tree.add(_line("Decision", trace["route"], trace.get("retrieval_status", "")))
    if trace["route"] == "no_knowledge":
        decision.add(_line(f"starved at {_starved(trace)}"))


def _starved(trace: Json) -> str:
    """Which stage left nothing to answer from."""
    if _list(trace, "sub_traces"):
        return "every part"
    if trace.get("recall_count") == 0 and not _list(trace, "initial_retrieved_chunks"):
        return "recall: no passage matches the question"
    if trace.get("post_threshold_count") == 0:
        return "rerank: every passage is below the score floor"
    if trace.get("evidence_relevance") == "none":
        return "grade: the passages are about something else"
    return "grade: the passages do not answer the question"


def _rewritten(trace: Json) -> bool:
    return bool(trace.get("rewrite_method") or _list(trace, "rewrite_retrieved_chunks"))


def _add_rewrite(tree: Tree, trace: Json) -> None:
    if not _rewritten(trace):
        return
    query = trace.get("rewritten_query") or trace.get("step_back_question") or trace.get("hyde_document") or ""
    branch = tree.add(_line("Rewrite", trace.get("rewrite_method", ""), _short(query)))
    found = _list(trace, "rewrite_retrieved_chunks")
    second = branch.add(_line("Recall", f"{len(found)} passages", _mode(trace), "searched together with the first"))
    _add_recalled(second, found, trace)


def _add_resumed(tree: Tree, trace: Json) -> None:
    if not trace.get("hitl_resumed"):
        return
    before = f"after {trace['hitl_resume_from_route']}" if trace.get("hitl_resume_from_route") else ""
    found = _list(trace, "hitl_targeted_retrieved_chunks")
    back = tree.add(_line("Resumed", before, f"with: {trace.get('hitl_answer', '')}"))
    recall = back.add(_line("Recall", f"{len(found)} passages", _mode(trace)))
    _add_recalled(recall, found, trace)


def _add_asked_back(tree: Tree, trace: Json) -> None:
    if not trace.get("hitl_prompt"):
        return
    back = tree.add(_line("Asked back", trace["hitl_prompt"]))
    for option in _list(trace, "hitl_options"):
        back.add(_line(option))


def _add_result(tree: Tree, trace: Json) -> None:
    kept = _list(trace, "retrieved_chunks")
    result = tree.add(_line("Evidence", f"{len(kept)} passages"))
    if trace.get("route") == "answer":
        found = trace.get("synthesis_merged_count", trace.get("post_threshold_count"))
        _add_dropped(result, found, len(kept), "no room in the prompt")
    for number, chunk in enumerate(kept, start=1):
        result.add(_chunk(number, chunk))


def _chunk(number: int, chunk: Json, remark: str = "") -> Text:
    text = f'"{_short(chunk["text"])}"' if chunk.get("text") else ""
    return _line(f"[{number}] {place(chunk)}", *_scores(chunk), chunk.get("heading") or "", text, remark)


def _scores(chunk: Json) -> list[str]:
    return [
        f"score {chunk['score']:.4f}" if chunk.get("score") is not None else "",
        f"rank {chunk['rrf_rank']}" if chunk.get("rrf_rank") is not None else "",
        f"rerank {chunk['rerank_score']:.4f}" if chunk.get("rerank_score") is not None else "",
    ]


def _list(fields: Json, name: str) -> list[Any]:
    return cast(list[Any], fields.get(name) or [])


def _left(count: int | None) -> str:
    return "" if count is None else f"{count} left"


def _short(text: str) -> str:
    text = one_line(text)
    return text if len(text) <= _QUOTE_CHARS else text[: _QUOTE_CHARS - 1] + "…"


def _line(head: str, *rest: str) -> Text:
    """``head · a · b`` without what is empty, on one line, and nothing of it as markup."""
    return Text(one_line(" · ".join(part for part in (head, *rest) if part)))


def _add(tree: Tree, head: str, lines: Sequence[str]) -> None:
    if lines:
        branch = tree.add(_line(head))
        for line in lines:
            branch.add(Text(line))
