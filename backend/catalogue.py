"""Every text for people, in English and Chinese. ``code`` values never change; these may."""

from typing import Literal

Language = Literal["en", "zh"]

_TEXTS: dict[str, tuple[str, str]] = {
    # errors, by code
    "validation_error": ("The request is not of the documented form.", "请求格式不正确。"),
    "idempotency_key_mismatch": (
        "Idempotency-Key and client_message_id differ.",
        "Idempotency-Key 与 client_message_id 不一致。",
    ),
    "message_too_large": ("The message is too long.", "消息过长。"),
    "too_large": ("The upload is larger than allowed.", "上传内容超过限制。"),
    "too_many_files": ("These are more files than one request may hold.", "单次请求包含的文件过多。"),
    "type_mismatch": (
        "This file type is not supported, or the content is not what the name says.",
        "文件类型不受支持或与内容不符。",
    ),
    "empty_document": ("The document is empty.", "文档为空。"),
    "encrypted_document": ("The document is encrypted.", "文档已加密。"),
    "no_extractable_text": ("The document holds no text that can be read.", "文档中没有可提取的文本。"),
    "encoding_unknown": ("The text encoding could not be determined.", "无法识别文本编码。"),
    "parse_failed": ("The document could not be read.", "无法解析文档。"),
    "unauthorized": ("Sign in first.", "请先登录。"),
    "forbidden": ("You may not do this.", "没有权限。"),
    "not_found": ("Not found.", "未找到。"),
    "method_not_allowed": ("This method is not offered here.", "不支持该请求方法。"),
    "name_taken": ("This name is taken.", "该名称已被占用。"),
    "cancelled": ("This was ended on request.", "已按要求取消。"),
    "idempotency_conflict": ("This key was already used for another message.", "该幂等键已用于其他消息。"),
    "run_active": ("An answer is still being written in this session.", "该会话正在生成回答。"),
    "stale_hitl": ("This question is no longer waiting for an answer.", "该澄清问题已失效。"),
    "rate_limited": ("Too many requests; try again later.", "请求过于频繁，请稍后再试。"),
    "too_many_runs": (
        "Too many answers are being written at once; try again later.",
        "同时生成的回答过多，请稍后再试。",
    ),
    "storage_unavailable": ("The database cannot be reached; try again.", "数据库暂时不可用，请重试。"),
    "draining": ("The server is shutting down; try again.", "服务器正在关闭，请重试。"),
    "provider_unavailable": ("The model cannot be reached.", "无法连接到模型服务。"),
    "provider_rate_limited": ("The model is busy; try again later.", "模型服务繁忙，请稍后再试。"),
    "provider_rejected": ("The model refused the request.", "模型服务拒绝了请求。"),
    "provider_protocol": ("The model's answer could not be understood.", "模型服务的响应无法识别。"),
    "provider_timeout": ("The model did not answer in time.", "模型服务响应超时。"),
    "context_too_long": ("The conversation is too long for the model.", "对话内容超出模型上下文长度。"),
    "content_filtered": ("The model's provider withheld this answer.", "模型服务拒绝给出该内容。"),
    "server_shutdown": ("The server stopped while the answer was written.", "生成回答时服务器已停止。"),
    "internal_error": ("Something went wrong on the server.", "服务器内部错误。"),
    # retrieval steps
    "step_received": ("Question received", "已收到问题"),
    "step_searching": ("Searching the documents", "正在检索文档"),
    "step_recalled": ("Passages recalled: {count}", "召回片段：{count}"),
    "step_merged": ("Passages merged into their sections: {count}", "合并到上级段落的片段：{count}"),
    "step_reranked": ("Passages reordered by relevance: {count}", "按相关性重新排序的片段：{count}"),
    "step_rerank_failed": (
        "Reordering by relevance failed; the order of the search stays",
        "相关性重排失败，保留检索顺序",
    ),
    "step_selected": ("Passages selected: {count}", "选用片段：{count}"),
    "step_nothing_found": ("Nothing found in the documents", "文档中没有找到相关内容"),
    "step_split": ("Split into sub-questions: {count}", "拆分为子问题：{count}"),
    "step_plan_failed": (
        "How to look this up could not be planned; it is looked up as one question",
        "未能规划检索方式，按单个问题检索",
    ),
    "step_graded_sufficient": ("The passages answer the question", "片段足以回答该问题"),
    "step_graded_partial": ("The passages answer a part of the question", "片段只能回答该问题的一部分"),
    "step_graded_none": ("The passages do not answer the question", "片段无法回答该问题"),
    "step_grade_failed": (
        "The passages could not be checked; they are used as they are",
        "未能核对片段，直接使用",
    ),
    "step_rewritten": ("Searching once more with other words", "换一种说法再次检索"),
    "step_rewrite_failed": (
        "No better wording could be made; what was found stays",
        "未能改写问题，沿用已有结果",
    ),
    "step_synthesized": ("Passages of all sub-questions put together: {count}", "汇总各子问题的片段：{count}"),
    "step_resumed": ("Going on with your answer", "根据您的补充继续检索"),
    "step_asking": ("Asking you back", "需要您进一步确认"),
    "step_no_documents": ("There are no documents yet", "尚未上传任何文档"),
    # what was done
    "document_ready": ("The document can be asked about.", "文档已可供提问。"),
    "job_upload_pending": ("The upload waits for its turn.", "上传任务排队中。"),
    "job_upload_running": ("The document is being prepared.", "正在处理文档。"),
    "job_upload_completed": ("The document can be asked about.", "文档已可供提问。"),
    "job_upload_failed": ("The document was not added.", "文档未能添加。"),
    "job_delete_pending": (
        "The document answers no more; what is left of it is being removed.",
        "文档已停用，正在清理。",
    ),
    "job_delete_running": ("What is left of the document is being removed.", "正在清理文档。"),
    "job_delete_completed": ("The document was deleted.", "文档已删除。"),
    "job_delete_failed": ("Not everything could be removed yet; it is tried again.", "尚未清理完毕，将自动重试。"),
    "job_upload_step_upload": ("Receive the file", "接收文件"),
    "job_upload_step_cleanup": ("Clear what an earlier attempt left", "清理上次未完成的内容"),
    "job_upload_step_parse": ("Read the text", "解析文本"),
    "job_upload_step_parent_store": ("Cut into passages and store them", "切分并保存片段"),
    "job_upload_step_vector_store": ("Make the passages searchable", "建立检索索引"),
    "job_delete_step_prepare": ("Take the document out of answers", "停用文档"),
    "job_delete_step_bm25": ("Remove it from the search by words", "从关键词索引中移除"),
    "job_delete_step_milvus": ("Remove it from the search by meaning", "从向量索引中移除"),
    "job_delete_step_parent_store": ("Remove its passages and file", "移除片段与原文件"),
    "job_step_pending": ("waiting", "等待中"),
    "job_step_running": ("working", "进行中"),
    "job_step_completed": ("done", "已完成"),
    "job_step_failed": ("failed", "失败"),
    "warning_replaced": (
        "{count} characters could not be read and were replaced.",
        "有 {count} 个字符无法识别，已被替换。",
    ),
    "warning_blank_pages": (
        "{count} of {total} pages hold no text that can be read.",
        "共 {total} 页，其中 {count} 页没有可提取的文本。",
    ),
    "upload_deleted": ("The file was removed.", "文件已移除。"),
    "document_deleted": ("The document was deleted.", "文档已删除。"),
    "collection_deleted": (
        "The collection was deleted; its documents are where they were.",
        "集合已删除，其中的文档未受影响。",
    ),
    "hitl_dismissed": ("The question waits no longer.", "已不再等待该问题的回答。"),
    "session_deleted": ("The conversation was deleted.", "会话已删除。"),
    # answers that no model writes
    "limit_reached": (
        "I had to stop here: this question needed more steps than one turn may take. Please ask a narrower question.",
        "本轮已达到步骤上限，只能到此为止。请把问题缩小一些再试。",
    ),
    "images_refused": (
        "I cannot look at images: the model that answers here refuses them. Please describe what you mean.",
        "我无法查看图片：当前使用的模型不接受图片。请用文字描述您想了解的内容。",
    ),
    "hitl_clarify": ("What exactly do you mean?", "请问您具体指的是什么？"),
    "hitl_clarify_slots": ("Please tell me more precisely: {slots}", "请补充以下信息：{slots}"),
    "hitl_scope_select": ("Which of these do you mean?", "您指的是以下哪一项？"),
    "slot_year": ("the year", "年份"),
    "slot_which": ("which one", "具体对象"),
    "hitl_options": ("You can choose:", "可选项："),
    "extractive_lead": ("The documents say:", "文档中的相关内容："),
    "extractive_files_lead": ("Your files say:", "您上传的文件中的相关内容："),
    "extractive_page": ("{filename}, page {page}", "{filename}，第 {page} 页"),
    "extractive_part_not_found": ("I found nothing in the documents on this.", "文档中没有找到与此相关的内容。"),
    "extractive_nothing_found": (
        "I found nothing in the documents that answers this. I answer from the documents only.",
        "文档中没有找到可以回答该问题的内容。我只根据文档回答。",
    ),
    "extractive_documents_only": (
        "I answer from the documents only. Ask me about something that they cover.",
        "我只根据文档回答，请提出与文档内容有关的问题。",
    ),
    # weather
    "weather_now": (
        "{place}: {description}, {temperature} °C, humidity {humidity} %, wind {wind}.",
        "{place}：{description}，气温 {temperature} °C，湿度 {humidity}%，风 {wind}。",
    ),
    "weather_unknown_place": (
        "The weather service knows no place named {place}.",
        "天气服务中没有名为“{place}”的地点。",
    ),
    "weather_unavailable": ("The weather service cannot be reached now.", "天气服务暂时不可用。"),
}


def say(key: str, language: Language = "en", **values: object) -> str:
    """The text ``key`` in ``language``; ``values`` fill its named places literally.

    Raises ``KeyError`` for an unknown key. Values are never read as templates.
    """
    english, chinese = _TEXTS[key]
    return (chinese if language == "zh" else english).format_map(values)


def choose_language(accept_language: str | None) -> Language:
    """``zh`` when an ``Accept-Language`` header (RFC 9110, 12.5.4) wants Chinese more than English, else ``en``."""
    best: tuple[float, Language] = (0.0, "en")
    for part in (accept_language or "")[:1000].split(","):
        tag, _, parameter = part.strip().partition(";")
        name: Language = "zh" if tag.lower().split("-")[0] == "zh" else "en"
        if name == "en" and tag.lower().split("-")[0] not in {"en", "*"}:
            continue
        try:
            quality = float(parameter.strip().removeprefix("q=")) if parameter else 1.0
        except ValueError:
            continue
        if quality > best[0]:
            best = (quality, name)
    return best[1]
