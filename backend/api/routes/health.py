"""Is the process alive, and can it serve."""

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
State = Literal["ok", "degraded", "down"]
router = APIRouter(prefix="/health", tags=["health"])
_log = get_logger(__name__)


class LiveResponse(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class ReadyResponse(BaseModel):
    """``down`` (503) without Postgres; ``degraded`` without Redis, when everything works, only slower."""

    status: State
    dependencies: dict[str, State]


@router.get("/live")
async def live() -> LiveResponse:
    """Whether the process should be left running. Asks no dependency."""
    return LiveResponse()


@router.get("/ready", responses={503: {"model": ReadyResponse}})
async def ready(services: CurrentServices, response: Response) -> ReadyResponse:
    """Whether requests should come here."""
    postgres, redis = await asyncio.gather(_postgres(services), _redis(services))
    status: State = "down" if postgres == "down" else redis
    response.status_code = 503 if status == "down" else 200
    return ReadyResponse(status=status, dependencies={"postgres": postgres, "redis": redis})


async def _postgres(services: Services) -> State:
    try:
        async with asyncio.timeout(READY_SECONDS), transaction(services.engine) as connection:
            await connection.execute(text("select 1"))
    except (StorageUnavailable, TimeoutError) as error:
        _log.warning("not_ready", dependency="postgres", error=type(error).__name__)
        return "down"
    return "ok"


async def _redis(services: Services) -> State:
    return "ok" if await services.cache.ping() else "degraded"
