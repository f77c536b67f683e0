"""What the operator measures."""

import asyncio

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse

from backend.metrics import CONTENT_TYPE, render

router = APIRouter(tags=["health"])


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics() -> Response:
    """Counters and times in Prometheus' text form, of all workers together; no ids, no texts of users."""
    return Response(await asyncio.to_thread(render), media_type=CONTENT_TYPE)
