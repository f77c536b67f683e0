"""All routes in one router, and what surrounds them."""

from fastapi import APIRouter, FastAPI
from starlette.middleware.cors import CORSMiddleware

from backend.api.config import ApiConfig
from backend.api.errors import error_responses, install_error_handlers
from backend.api.middlewares import GateMiddleware, RequestContextMiddleware
from backend.api.openapi import install_openapi
from backend.api.routes import auth, chat, collections, documents, files, health, jobs, metrics, reading, sessions

_CORS_REQUEST = ["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "X-Request-Id", "Accept-Language"]
_CORS_RESPONSE = ["X-Request-Id", "X-Run-Id", "Content-Location", "Retry-After"]


def api_router() -> APIRouter:
    """Every route of the API."""
    router = APIRouter(responses=error_responses("unauthorized", "internal_error"))
    for room in (auth, chat, sessions, files, jobs, documents, reading, collections, health, metrics):
        router.include_router(room.router)
    return router


def install(app: FastAPI, api_config: ApiConfig, *, max_upload_bytes: int) -> None:
    """Put error answers and middlewares around ``app``. The last one added is the outermost."""
    install_error_handlers(app)
    install_openapi(app)
    app.add_middleware(GateMiddleware, max_body_bytes=api_config.max_body_bytes, max_upload_bytes=max_upload_bytes)
    if api_config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(api_config.cors_origins),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=_CORS_REQUEST,
            expose_headers=_CORS_RESPONSE,
            max_age=600,
        )
    app.add_middleware(RequestContextMiddleware)
