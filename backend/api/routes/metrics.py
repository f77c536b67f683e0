"""What the operator measures."""

import asyncio
from typing import Any

from fastapi import APIRouter, Response

from backend.metrics import CONTENT_TYPE, render

_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
router = APIRouter(tags=["health"])


@router.get("/metrics", responses=_TEXT, response_class=Response)
async def metrics() -> Response:
    """Counters and times in Prometheus' text form, of all workers together; no ids, no texts of users."""
    return Response(await asyncio.to_thread(render), media_type=CONTENT_TYPE)
