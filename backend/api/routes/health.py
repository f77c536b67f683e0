"""Is the process alive, and can it serve: what a request needs is asked, each with a deadline."""

import asyncio
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel
from sqlalchemy import text

from backend.api.deps import CurrentServices, Services
from backend.errors import StorageUnavailable
from backend.infra.database.engine import transaction
from backend.log import get_logger

READY_SECONDS = 5.0
State = Literal["ok", "degraded", "draining", "down"]
router = APIRouter(prefix="/health", tags=["health"])
_log = get_logger(__name__)


class LiveResponse(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class ReadyResponse(BaseModel):
    """503 when requests should go elsewhere: ``down`` without PostgreSQL, ``draining`` while the worker ends.

    ``degraded`` (200) without Redis, when everything works, only slower, and without the index, when conversations
    work and searching does not.
    """

    status: State
    dependencies: dict[str, State]


@router.get("/live")
async def live() -> LiveResponse:
    """Whether the process should be left running. Asks no dependency."""
    return LiveResponse()


@router.get("/ready", responses={503: {"model": ReadyResponse}})
async def ready(services: CurrentServices, response: Response) -> ReadyResponse:
    """Whether requests should come here."""
    postgres, redis, index = await asyncio.gather(_postgres(services), _redis(services), _index(services))
    states: dict[str, State] = {"postgres": postgres, "redis": redis, "index": index}
    status = _overall(states, draining=services.chat.draining)
    response.status_code = 503 if status in ("down", "draining") else 200
    return ReadyResponse(status=status, dependencies=states)


def _overall(states: dict[str, State], *, draining: bool) -> State:
    if "down" in states.values():
        return "down"
    if draining:
        return "draining"
    return "degraded" if "degraded" in states.values() else "ok"


async def _postgres(services: Services) -> State:
    try:
        async with asyncio.timeout(READY_SECONDS), transaction(services.engine) as connection:
            await connection.execute(text("select 1"))
    except (StorageUnavailable, TimeoutError) as error:
        _log.warning("not_ready", dependency="postgres", error=type(error).__name__)
        return "down"
    return "ok"


async def _index(services: Services) -> State:
    try:
        async with asyncio.timeout(READY_SECONDS):
            await services.knowledge.check_index()
    except (StorageUnavailable, TimeoutError) as error:
        _log.warning("not_ready", dependency="index", error=type(error).__name__)
        return "degraded"
    return "ok"


async def _redis(services: Services) -> State:
    return "ok" if await services.cache.ping() else "degraded"
